package index

// eachBatch is how many look-ups LookupEach does at a time: several times as many as the memory
// accesses that the processor can wait for.
const eachBatch = 64

// probe is one look-up of LookupEach, with what was read of its present entry.
type probe struct {
	hash, wanted uint32
	id, chain    ID
	parent       ID
	name         uint32
	nameLen      uint8
	state        state
	stored       []byte
	first        byte
	i            uint8
}

// Found is what LookupEach finds for a name.
type Found struct {
	ID   ID     // as of Lookup: 0 if nothing has the name
	Hash uint32 // as of HashOf
}

// LookupEach sets out[i] to what Lookup(parents[i], names[i]) finds. It does not allocate.
//
// A table of millions of entries is in no cache, so a look-up waits for memory three times: for the
// bucket, the entry, and the name. LookupEach takes one step of many look-ups before the next step
// of any. No branch in between depends on what was read. So the processor waits for all of them at
// the same time.
func (x *Index) LookupEach(parents []ID, names []string, out []Found) {
	for len(names) > 0 {
		n := min(len(names), eachBatch)
		x.lookupEach(parents[:n], names[:n], out[:n])
		parents, names, out = parents[n:], names[n:], out[n:]
	}
}

func (x *Index) lookupEach(parents []ID, names []string, out []Found) {
	var batch [eachBatch]probe
	for i, name := range names {
		p := &batch[i]
		p.i, p.wanted = uint8(i), x.hash(parents[i], name)
		out[i] = Found{Hash: p.wanted}
		if len(name) > 0 && len(name) <= maxName {
			p.id = *x.table.bucket(p.wanted)
		}
	}
	for left := batch[:len(names)]; len(left) > 0; {
		for k := range left {
			p := &left[k]
			e := &x.entries[p.id>>entryBits][p.id%entryChunk] // slot 0 is nobody's, but there
			p.hash, p.parent, p.chain = e.hash, e.parent, e.chain
			p.name, p.nameLen, p.state = e.name, e.nameLen, e.state
		}
		for k := range left {
			if p := &left[k]; p.hash == p.wanted && p.id != 0 {
				p.stored = x.names.at(p.name, p.nameLen)
				p.first = p.stored[0]
			}
		}
		again := left[:0]
		for k := range left {
			p := left[k]
			if p.id == 0 {
				continue
			}
			if p.hash == p.wanted && p.parent == parents[p.i] && isName(p.stored, p.state.groups(), names[p.i]) {
				out[p.i].ID = p.id
			} else if p.id = p.chain; p.id != 0 {
				again = append(again, p)
			}
		}
		left = again
	}
}
