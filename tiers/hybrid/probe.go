package hybrid

import (
	"slices"
	"sync"
)

// span is the result of a probe of a class. Its blocks before from are not needed, those from there
// up to end are. Together they cover tokens of the prompt.
type span struct {
	from   int
	end    int
	tokens int
}

// probe is the state of one question. It remembers which units of which class were there. So it
// asks for none twice, and a whole question sees the same presence.
type probe struct {
	c       *Coordinator
	exists  Exists // nil: everything is there
	hashes  int    // units that have a hash
	stored  bool   // what a dense store leaves out is not asked for, and not there
	beyond  bool   // set when a class looked for a unit without hash
	words   int    // of known and have, for each class
	known   []uint64
	have    []uint64
	spans   [MaxGroups]span
	backing []uint64
}

var probes = sync.Pool{New: func() any { return new(probe) }}

// newProbe takes a probe for units below hashes from the pool; release gives it back.
func newProbe(c *Coordinator, hashes int, exists Exists) *probe {
	p := probes.Get().(*probe)
	p.c, p.exists, p.hashes = c, exists, hashes
	p.stored, p.beyond = false, false
	p.known, p.have = nil, nil
	if exists == nil {
		return p
	}
	p.words = (hashes + 63) / 64
	n := p.words * len(c.classes)
	p.backing = slices.Grow(p.backing[:0], 2*n)[:2*n]
	clear(p.backing)
	p.known, p.have = p.backing[:n], p.backing[n:]
	return p
}

// release returns p to the pool. It drops references, and memory that is too large to keep for the
// next question.
func (p *probe) release() {
	const keepWords = 1 << 15 // 256 KiB
	p.c, p.exists, p.known, p.have = nil, nil, nil, nil
	if cap(p.backing) > keepWords {
		p.backing = nil
	}
	probes.Put(p)
}

// unit reports whether all groups of class i have unit u, which has a hash.
func (p *probe) unit(i, u int) bool {
	if p.exists == nil {
		return true
	}
	word, bit := i*p.words+u>>6, uint64(1)<<(u&63)
	if p.known[word]&bit == 0 {
		p.known[word] |= bit
		if p.ask(i, u) {
			p.have[word] |= bit
		}
	}
	return p.have[word]&bit != 0
}

func (p *probe) ask(i, u int) bool {
	for _, g := range p.c.classes[i].groups {
		if !p.exists(g, u) {
			return false
		}
	}
	return true
}

// block reports whether all groups of class i have whole block b, under the hash
// of the last unit in it.
func (p *probe) block(i, b int) bool {
	cl := &p.c.classes[i]
	if p.stored && !cl.keep.has(b) {
		return false
	}
	return p.unit(i, (b+1)*cl.units-1)
}

// class finds the longest hit of class i alone of at most bound tokens. With drop, the last block
// of the hit does not count: it has to be computed again.
func (p *probe) class(i, bound int, drop bool) span {
	cl := &p.c.classes[i]
	switch {
	case cl.kind.fullLike():
		return p.full(i, cl, bound, drop)
	case cl.kind.window():
		return p.window(i, cl, bound, drop)
	case cl.kind == ChunkedLocal:
		return p.chunked(i, cl, bound)
	case cl.kind == Mamba:
		return p.mamba(i, cl, bound)
	}
	return span{} // Cross
}

// full needs all blocks from the start. In fine mode the last block may end at any unit. A block
// that is there for more tokens than asked for is accepted too.
func (p *probe) full(i int, cl *class, bound int, drop bool) span {
	limit := min(bound/cl.block, p.hashes/cl.units)
	n := 0
	for n < limit && p.block(i, n) {
		n++
	}
	hit := n * cl.block
	if h := p.c.spec.HashBlockSize; p.c.fine && cl.units > 1 {
		first := n * cl.units
		last := min(first+cl.units-1, bound/h, p.hashes) - 1
		for u := last; u >= first; u-- {
			if p.unit(i, u) {
				hit = (u + 1) * h
				break
			}
		}
	}
	if drop && hit > 0 {
		hit -= min(p.c.align, cl.block)
	}
	hit -= hit % p.c.align
	return span{end: ceilDiv(hit, cl.block), tokens: hit}
}

// window needs the blocks that a window before the hit reaches into. It needs fewer if they begin
// at the start of the prompt.
func (p *probe) window(i int, cl *class, bound int, drop bool) span {
	b, align := cl.block, p.c.align
	blocks := bound / b
	if p.short(cl, blocks) {
		return span{}
	}
	need := cl.reach() + boolInt(drop)
	found := span{}
	run := 0
	for at := blocks - 1; at >= 0; at-- {
		if run == 0 && b != align && (at+1-boolInt(drop))*b%align != 0 {
			continue // no hit may end here, present or not
		}
		if !p.block(i, at) {
			run = 0
			continue
		}
		if run++; run >= need {
			found = span{from: at, end: at + run}
			break
		}
	}
	if found.end == 0 {
		found.end = run // it touches the start
		for found.end > 0 && found.end*b%align != 0 {
			found.end--
		}
	}
	if drop && found.end > 0 {
		found.end--
		for found.end > 0 && found.end*b%align != 0 {
			found.end--
		}
	}
	found.tokens = found.end * b
	return found
}

// chunked needs those blocks of the attention chunk that the hit ends in which are there.
func (p *probe) chunked(i int, cl *class, bound int) span {
	s := span{from: bound / cl.chunk * cl.chunk / cl.block}
	for s.end = s.from; s.end < bound/cl.block; s.end++ {
		if p.short(cl, s.end+1) || !p.block(i, s.end) {
			break
		}
	}
	s.tokens = s.end * cl.block
	return s
}

// mamba needs the one state at the end of the hit.
func (p *probe) mamba(i int, cl *class, bound int) span {
	h, align := p.c.spec.HashBlockSize, p.c.align
	if p.c.fine && cl.units > 1 {
		for u := min(bound/h, p.hashes) - 1; u >= 0; u-- {
			if p.unit(i, u) {
				at := u / cl.units
				return span{from: at, end: at + 1, tokens: (u + 1) * h}
			}
		}
		return span{}
	}
	blocks := bound / cl.block
	if p.short(cl, blocks) {
		return span{}
	}
	for at := blocks - 1; at >= 0; at-- {
		if tokens := (at + 1) * cl.block; tokens%align == 0 && p.block(i, at) {
			return span{from: at, end: at + 1, tokens: tokens}
		}
	}
	return span{}
}

// short reports whether there are too few hashes for that many blocks of cl, and records it.
func (p *probe) short(cl *class, blocks int) bool {
	short := blocks > p.hashes/cl.units
	p.beyond = p.beyond || short
	return short
}
