package suite

import (
	"errors"
	"slices"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// recordCases check driver.Recorder.
func recordCases() []suiteCase {
	return []suiteCase{
		{name: "UpdateAttributes", run: checkUpdateAttributes},
		{name: "UpdateName", run: checkUpdateName},
		{name: "UpdateReplaces", run: checkUpdateReplaces},
		{name: "UpdateUnknown", run: checkUpdateUnknown},
		{name: "UpdateLongName", run: checkUpdateLongName},
		{name: "UpdateWhileStoring", run: checkUpdateWhileStoring},
		{name: "UpdateWhileLoading", run: checkUpdateWhileLoading},
	}
}

// isKind reports whether err is of that kind.
func isKind(err, kind error) bool { return errors.Is(err, kind) }

// update calls Update, overwrites the arguments, and returns the block as it must be then.
func (h *harness) update(p payload, to block.Key, attrs driver.Attrs) payload {
	h.t.Helper()
	given := attrs
	given.Dirs = slices.Clone(attrs.Dirs)
	if !mustHave[driver.Recorder](h).Update(p.key, to, &given) && !h.opts.Faulty {
		h.errorf("Update %.80q to %.80q: got false, want true", p.key.Path(), to.Path())
	}
	clear(given.Dirs) // owned by the suite again
	given = driver.Attrs{}
	return payload{key: to, data: p.data, attrs: attrs}
}

// wantThere checks that exactly these blocks are there, as far as the tier can tell.
func (h *harness) wantThere(blocks ...payload) {
	h.t.Helper()
	h.wantPresence(driver.Hit, keysOf(blocks)...)
	h.wantAll(h.load(blocks...), driver.Loaded)
	if e, ok := ability[driver.Enumerator](h.tier); ok && !h.opts.Faulty {
		h.wantListed(e, blocks)
	}
	if f, ok := ability[driver.Finder](h.tier); ok && !h.opts.Faulty {
		for _, p := range blocks {
			h.wantFound(f, p)
		}
	}
}

// checkUpdateAttributes: an Update to the same name changes the attributes of the block at once,
// and leaves its bytes. Its Seq is the version from then on.
func checkUpdateAttributes(h *harness) {
	mustHave[driver.Recorder](h)
	blocks := h.attrPayloads("update")
	h.wantAll(h.store(blocks...), driver.Stored)
	fresh := h.attrPayloads("update")
	for i, p := range blocks {
		attrs := h.payload(p.key, 50+i, 1).attrs
		attrs.Pinned = !p.attrs.Pinned
		fresh[i] = h.update(p, p.key, attrs)
	}
	h.wantThere(fresh...)
	outcomes := h.store(fresh...)
	for i := range outcomes {
		h.wantHeld(outcomes, i)
	}
	h.wantAll(h.store(blocks[0]), driver.Stored) // its Seq is another version now
	fresh[0] = blocks[0]
	h.wantThere(fresh...)
}

// checkUpdateName: a block has its new name and its new attributes as soon as Update returns, and
// no longer the old name; also in another group, and down and up the tree.
func checkUpdateName(h *harness) {
	mustHave[driver.Recorder](h)
	blocks := h.payloads("rename", 3, 5000)
	h.wantAll(h.store(blocks...), driver.Stored)
	p := blocks[0]
	for i, path := range []string{"rename/other", "elsewhere/a/b/c/d", "top", "elsewhere/a/b/c/e"} {
		to, err := block.ParseKey(path)
		if err != nil {
			h.fatalf("%v", err)
		}
		from := p
		p = h.update(p, to, h.payload(to, i+1, 1).attrs)
		h.wantPresence(driver.Hit, p.key)
		h.wantPresence(driver.Miss, from.key)
		outcomes := h.load(from)
		h.wantAll(outcomes, driver.Absent)
		h.never(outcomes, driver.Loaded, "it was renamed")
		if n := h.tier.Remove([]block.Key{from.key}); n != 0 {
			h.errorf("Remove of the old name: got %d, want 0", n)
		}
		h.wantThere(append(slices.Clone(blocks[1:]), p)...)
	}
	h.wantAll(h.store(blocks[0]), driver.Stored) // the old name is free
	h.wantThere(append(slices.Clone(blocks), p)...)
	if n := h.tier.Remove([]block.Key{p.key}); n != 1 && !h.opts.Faulty {
		h.errorf("Remove of the new name: got %d, want 1", n)
	}
	h.wantThere(blocks...)
}

// checkUpdateReplaces: the earlier block of the new name is dropped.
func checkUpdateReplaces(h *harness) {
	mustHave[driver.Recorder](h)
	blocks := h.payloads("replace", 3, 5000)
	blocks[1] = h.payload(blocks[1].key, 0, 800)
	if !h.wantAll(h.store(blocks...), driver.Stored) {
		return
	}
	moved := h.update(blocks[0], blocks[1].key, h.payload(blocks[1].key, 5, 1).attrs)
	h.never(h.load(blocks[1]), driver.Loaded, "it was replaced by a rename")
	h.wantPresence(driver.Miss, blocks[0].key)
	h.wantThere(moved, blocks[2])
	if n := h.tier.Remove(keysOf(blocks[:2])); n != 1 && !h.opts.Faulty {
		h.errorf("Remove of old and new name: got %d, want 1", n)
	}
	h.never(h.load(blocks[1]), driver.Loaded, "it was replaced by a rename")
}

// checkUpdateUnknown: Update says that the tier lacks the block, and makes none.
func checkUpdateUnknown(h *harness) {
	r := mustHave[driver.Recorder](h)
	blocks := h.payloads("unknown", 2, 100)
	h.wantAll(h.store(blocks[0]), driver.Stored)
	h.tier.Remove(keysOf(blocks[:1]))
	for _, p := range blocks {
		for _, to := range []block.Key{p.key, numberedKey("unknown-to", 0)} {
			if r.Update(p.key, to, &driver.Attrs{Seq: 9}) {
				h.errorf("Update of %.80q, which is not there: got true, want false", p.key.Path())
			}
			h.wantPresence(driver.Miss, p.key, to)
		}
	}
}

// checkUpdateLongName: if the tier cannot keep the new name of a block, it no longer holds the
// block under either name.
func checkUpdateLongName(h *harness) {
	r := mustHave[driver.Recorder](h)
	p := h.payload(numberedKey("long", 0), 0, 100)
	h.wantAll(h.store(p), driver.Stored)
	to := h.longKey(block.MaxPath, "z")
	if r.Update(p.key, to, &driver.Attrs{Seq: 2}) {
		h.wantAll(h.load(payload{key: to, data: p.data}), driver.Loaded)
	} else {
		h.wantPresence(driver.Miss, to)
	}
	h.wantPresence(driver.Miss, p.key)
	h.never(h.load(p), driver.Loaded, "it was renamed")
}

// checkUpdateWhileStoring: Update also undoes an earlier accepted Store of the new name.
func checkUpdateWhileStoring(h *harness) {
	mustHave[driver.Recorder](h)
	for round := range 10 {
		blocks := h.payloads("over", 2, 64<<10)
		if !h.wantAll(h.store(blocks[0]), driver.Stored) {
			return
		}
		store := h.submit(jobSpec{op: storeJob, blocks: blocks[1:]})
		moved := h.update(blocks[0], blocks[1].key, h.payload(blocks[1].key, 10+round, 1).attrs)
		h.wantStatus(h.settle(store), 0, driver.Stored, driver.Skipped)
		h.never(h.load(blocks[1]), driver.Loaded, "another block was renamed to its name")
		h.wantThere(moved)
		h.tier.Remove(keysOf(blocks))
	}
}

// checkUpdateWhileLoading: blocks that swap names during loads give right bytes or none. The
// checksum of a request says which bytes are right.
func checkUpdateWhileLoading(h *harness) {
	mustHave[driver.Recorder](h)
	const rounds = 30
	p := h.payload(numberedKey("moving", 0), 0, 16<<10)
	h.wantAll(h.store(p), driver.Stored)
	data := p.data // p changes below
	names := []block.Key{p.key, numberedKey("moving", 1), {Hash: "moving-top"}}
	var wg sync.WaitGroup
	for n := range 3 {
		w := h.worker(n)
		wg.Go(func() {
			for range rounds {
				asked := payload{key: names[w.rng.IntN(len(names))], data: data}
				outcomes := w.load(asked)
				w.wantStatus(outcomes, 0, driver.Loaded, driver.Absent)
			}
		})
	}
	for i := range rounds {
		to := names[(i+1)%len(names)]
		p = h.update(p, to, h.payload(to, i+1, 1).attrs)
		out, ok := h.lookup(to)
		if ok && out[0] != driver.Hit && !h.opts.Faulty {
			h.errorf("round %d: Lookup of the new name: got %v, want hit", i, out[0])
		}
		h.wantAll(h.load(p), driver.Loaded)
	}
	wg.Wait()
	h.wantThere(p)
}
