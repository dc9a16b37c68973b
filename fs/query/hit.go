package query

import (
	"context"
	"fmt"
	"io"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/template"
)

// maxPairs bounds the files of a longest_hit: hashes times groups times ranks.
const maxPairs = 1 << 24

// How many blocks of a group the engine is asked for at a time, first and later.
const (
	firstAsk = 32
	laterAsk = 128
)

// metFlag is set in a state once the search has met the block.
const metFlag byte = 0x80

// search answers a Coordinator, which asks for one block after another. It asks the engine for many
// at once, ahead in the Coordinator's direction through the group.
type search struct {
	s      *Service
	sc     *scratch
	ctx    context.Context
	names  *nameList
	o      names.PresenceOptions
	groups []searchGroup
	states []byte // codes, those of a group one after another

	pending, late int // distinct blocks met
	stopped       bool
}

type searchGroup struct {
	layout *layout
	ranks  int
	block  int // hashes to a block
	step   int // usual distance from one question to the next
	last   int // unit asked for last
	ask    int // how many to ask for next time
}

// newSearch prepares to search for all groups of c.
func (s *Service) newSearch(ctx context.Context, sc *scratch, c *hybrid.Coordinator) (*search, *strict.Error) {
	q := &sc.q
	n, spec := &q.names, c.Spec()
	v := &search{s: s, sc: sc, ctx: ctx, names: n, o: q.presence(), groups: make([]searchGroup, len(spec.Groups))}
	parts, err := n.parts()
	if err != nil {
		return nil, err
	}
	if len(spec.Groups) > 1 && !parts.Has(template.Group) {
		return nil, strict.Faulty("/template", "has no {group}, but the spec has %d groups: they would share their blocks", len(spec.Groups))
	}
	files := 0
	for i, g := range spec.Groups {
		l, err := newLayout(parts, []byte(g.Name), "/spec")
		if err != nil {
			return nil, err
		}
		l.hex = n.hex
		ranks := n.ranks
		if g.Ranks > 0 {
			ranks = g.Ranks
		}
		if !l.ranked {
			ranks = 1
		}
		files += n.count * ranks
		block := g.BlockSize / spec.HashBlockSize
		v.groups[i] = searchGroup{layout: l, ranks: ranks, block: block, step: stepOf(g, block), last: -1, ask: firstAsk}
	}
	if len(v.groups) > 0 {
		if err := n.check(v.groups[0].layout); err != nil {
			return nil, err
		}
	}
	if files > maxPairs {
		return nil, strict.Faulty("/hashes", "%d hashes of all groups and ranks are more than %d files", n.count, maxPairs)
	}
	v.states = bytesOf(&sc.states, n.count*len(v.groups))
	return v, nil
}

// stepOf returns the direction of a Coordinator through a group: from the beginning if all of it
// must be there, from the end if the latest suffices.
func stepOf(g hybrid.Group, block int) int {
	switch g.Kind {
	case hybrid.SlidingWindow, hybrid.WindowMLA:
		return -block
	case hybrid.Mamba:
		if g.Mode == "align" {
			return -1
		}
		return -block
	}
	return block
}

// exists is the Exists of the Coordinator.
func (v *search) exists(group, unit int) bool {
	at := group*v.names.count + unit
	code := v.states[at]
	if code == codeUnknown {
		code = v.fill(group, unit)
	}
	if code&metFlag == 0 {
		v.states[at] = code | metFlag
		switch code {
		case codePending:
			v.pending++
		case codeLate:
			v.late++
		}
	}
	v.groups[group].last = unit
	return code&^metFlag <= codeLast
}

// fill asks the engine for a block and for those that will probably be asked for next. It returns
// the code of the first.
func (v *search) fill(group, unit int) byte {
	if v.stopped || v.ctx.Err() != nil {
		v.stopped = true
		return codeMiss
	}
	g := &v.groups[group]
	step := g.step
	if d := unit - g.last; g.last >= 0 && (d == 1 || d == -1 || d == g.block || d == -g.block) {
		step = d
	} else {
		g.ask = firstAsk
	}
	known := v.states[group*v.names.count : (group+1)*v.names.count]
	count := 0
	for u := unit; count < g.ask && u >= 0 && u < len(known) && known[u] == codeUnknown; u += step {
		count++
	}
	found := v.sc.codes[:count]
	v.s.look(v.sc, v.names, g.layout, g.ranks, v.o, unit, step, found)
	for i, code := range found {
		known[unit+i*step] = code
	}
	g.ask = laterAsk
	return found[0]
}

// promote begins to promote the blocks of the hit, those of the first groups first.
func (v *search) promote(fetch [][]int) {
	f := v.s.newHint(v.sc)
	for i, units := range fetch {
		g := &v.groups[i]
		for _, u := range units {
			if code := v.states[i*v.names.count+u] &^ metFlag; code > codeMemory && code <= codeLast {
				f.add(v.names, g.layout, u, g.ranks)
			}
		}
	}
	f.flush()
}

// found is the answer to longest_hit.
type found struct {
	hit   hybrid.Hit
	fetch [][]int // nil unless asked for
	v     *search
	spec  *hybrid.Spec
}

// load returns the mask of a group.
func (f *found) load(group int) []bool {
	if group < len(f.hit.Load) {
		return f.hit.Load[group]
	}
	return nil
}

// lookHit searches for the longest hit.
func (s *Service) lookHit(ctx context.Context, sc *scratch) (found, *strict.Error) {
	q := &sc.q
	c, err := s.coordinator(q)
	if err != nil {
		return found{}, err
	}
	v, err := s.newSearch(ctx, sc, c)
	if err != nil {
		return found{}, err
	}
	f := found{v: v, spec: c.Spec()}
	tokens := int(q.numTokens)
	if q.has&hasNumTokens == 0 {
		tokens = q.names.count * f.spec.HashBlockSize
	}
	f.hit = c.Lookup(tokens, q.names.count, v.exists)
	if q.fetch || q.promote {
		f.fetch = c.Fetch(f.hit.Tokens, int(q.cached), q.names.count, f.hit.Load, v.exists)
	}
	if v.stopped {
		return found{}, &strict.Error{Why: "the request was cancelled"}
	}
	if q.promote {
		v.promote(f.fetch)
	}
	return f, nil
}

// longestHit answers how many tokens of a prompt need not be computed.
func (s *Service) longestHit(ctx context.Context, sc *scratch, _ io.Writer) *strict.Error {
	f, err := s.lookHit(ctx, sc)
	if err != nil {
		return err
	}
	out := append(sc.out[:0], `{"op": "longest_hit"`...)
	out = appendNumber(out, "hit_tokens", f.hit.Tokens)
	out = fmt.Appendf(out, `, "capped": %t`, f.hit.Capped)
	out = appendNumber(out, "pending", f.v.pending)
	out = appendNumber(out, "late", f.v.late)
	out = append(out, `, "groups": [`...)
	for i, g := range f.spec.Groups {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = appendGroup(out, g.Name, f.load(i))
		if sc.q.fetch {
			out = appendList(append(out, `, "fetch": `...), f.fetch[i])
		}
		out = append(out, '}')
	}
	sc.out = append(out, "]}\n"...)
	return nil
}

// appendGroup begins the object of a group with its load mask.
func appendGroup(out []byte, name string, load []bool) []byte {
	out = appendText(append(out, `{"name": `...), name)
	out = appendBits(append(out, `, "load": "`...), load)
	return append(out, '"')
}
