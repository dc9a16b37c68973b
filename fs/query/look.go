package query

import (
	"context"
	"io"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/names"
)

// A code says where a block is, in one byte. A larger code is worse. The code of a block of several
// ranks is the largest of theirs.
const (
	codeUnknown byte = iota
	codeMemory
	codeLast    = codeMemory + maxTiers - 1 // of the last tier
	codePending = codeLast + 1
	codeLate    = codeLast + 2
	codeMiss    = codeLast + 3
	codeDir     = codeLast + 4

	codes = codeDir + 1

	maxTiers = 32
)

// codeOf returns the code of a place.
func codeOf(p names.Place) byte {
	switch p.Presence {
	case driver.Hit:
		return codeMemory + min(p.Tier, maxTiers-1)
	case driver.Pending:
		return codePending
	}
	switch {
	case p.Late:
		return codeLate
	case p.Dir:
		return codeDir
	}
	return codeMiss
}

// look asks the engine for at most batch items: first, first+step, and so on. It writes their codes
// to out.
func (s *Service) look(sc *scratch, n *nameList, l *layout, ranks int, o names.PresenceOptions, first, step int, out []byte) {
	o.As, o.Request, o.By = sc.as, sc.q.request, sc.by
	for rank := range ranks {
		sc.arena, sc.paths = sc.arena[:0], sc.paths[:0]
		if l == nil && step == 1 {
			sc.paths = append(sc.paths, n.items[first:first+len(out)]...)
		} else {
			s.expand(sc, n, l, rank, first, step, len(out))
		}
		places := sc.places[:len(out)]
		s.engine.Presences(sc.paths, o, places)
		for i, p := range places {
			code := codeOf(p)
			if len(sc.paths[i]) == 0 {
				code = codeMiss // the hash has no path
			}
			if rank == 0 || code > out[i] {
				out[i] = code
			}
		}
	}
}

// expand appends the paths of count items to sc.paths. An item without a path gets an empty one.
func (s *Service) expand(sc *scratch, n *nameList, l *layout, rank, first, step, count int) {
	var path []byte
	for i, item := 0, first; i < count; i, item = i+1, item+step {
		path, sc.arena, _ = n.appendPath(sc.arena, l, item, rank)
		sc.paths = append(sc.paths, path)
	}
}

// counts is what exists has found.
type counts struct {
	hits, pending, late, misses, prefix int
}

// lookAll asks for all items. It puts the character of each in states into sc.states.
func (s *Service) lookAll(ctx context.Context, sc *scratch, l *layout) (c counts, err *strict.Error) {
	q := &sc.q
	n := &q.names
	states := bytesOf(&sc.states, n.count)
	o := q.presence()
	for first := 0; first < n.count; first += batch {
		if err := cancelled(ctx); err != nil {
			return c, err
		}
		part := states[first:min(first+batch, n.count)]
		s.look(sc, n, l, n.ranks, o, first, 1, part)
	}
	if q.promote {
		s.hintAll(sc, l)
	}
	return s.count(states), nil
}

// hintAll begins to promote the items that are in other tiers than memory.
func (s *Service) hintAll(sc *scratch, l *layout) {
	n := &sc.q.names
	f := s.newHint(sc)
	for i, code := range sc.states {
		if code > codeMemory && code <= codeLast {
			f.add(n, l, i, n.ranks)
		}
	}
	f.flush()
}

// count counts codes and replaces each by its character.
func (s *Service) count(states []byte) (c counts) {
	var of [codes]int
	c.prefix = len(states)
	for i, code := range states {
		of[code]++
		states[i] = s.chars[code]
		if code > codeLast && i < c.prefix {
			c.prefix = i
		}
	}
	for _, n := range of[codeMemory : codeLast+1] {
		c.hits += n
	}
	c.pending, c.late, c.misses = of[codePending], of[codeLate], of[codeMiss]+of[codeDir]
	return c
}

// exists answers which blocks are there.
func (s *Service) exists(ctx context.Context, sc *scratch, _ io.Writer) *strict.Error {
	if err := sc.q.listed(); err != nil {
		return err
	}
	l, err := sc.q.names.prepare()
	if err != nil {
		return err
	}
	c, err := s.lookAll(ctx, sc, l)
	if err != nil {
		return err
	}
	out := append(sc.out[:0], `{"op": "exists", "states": "`...)
	out = append(out, sc.states...)
	out = appendNumber(append(out, '"'), "hits", c.hits)
	out = appendNumber(out, "pending", c.pending)
	out = appendNumber(out, "late", c.late)
	out = appendNumber(out, "misses", c.misses)
	out = appendNumber(out, "prefix", c.prefix)
	sc.out = append(out, "}\n"...)
	return nil
}

// release ends the leases of a request.
func (s *Service) release(_ context.Context, sc *scratch, _ io.Writer) *strict.Error {
	if sc.q.request == "" {
		return strict.Faulty("/request", "may not be empty")
	}
	sc.out = append(appendNumber(append(sc.out[:0], `{"op": "release"`...), "released", s.engine.ReleaseRequest(sc.as, sc.q.request)), "}\n"...)
	return nil
}
