package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// Engine is the part of *tiers.Engine that a Service needs. It must not keep any path beyond a
// call.
type Engine interface {
	Presences(paths [][]byte, o names.PresenceOptions, out []names.Place)
	Prefetch(ctx context.Context, r transfer.PrefetchRequest)
	Hint(as *event.Viewer, request string, paths [][]byte)
	ReleaseRequest(as *event.Viewer, request string) (ended int)
	Why(path string) outcome.Verdict
}

// Options configures a Service.
type Options struct {
	Engine Engine                 // required
	Tiers  []string               // types of the engine's tiers, memory first: "memory", "disk", "object", "peer"
	Specs  map[string]hybrid.Spec // at the start; New checks all of them
	Traced func(Traced)           // called after the answer to a request whose name is a traceparent. It must not block. Nil: nobody
}

// Service answers requests. All methods may be called in parallel.
//
// A handler takes one whole request, as bytes that it may keep until it returns, and writes the
// answer. A faulty request gets an answer, too. A write to answer may block until the reader has
// read. It fails when the reader is gone, and the handler returns.
type Service struct {
	engine Engine
	chars  [codes]byte      // what stands in states for each code
	now    func() time.Time // for the ages of verdicts
	traced func(Traced)

	pool sync.Pool // of *scratch

	mu struct {
		sync.RWMutex // leaf
		specs        map[string]*hybrid.Coordinator
	}
}

// New makes a Service. It fails with the reasons against all specs.
func New(o Options) (*Service, error) {
	s := &Service{engine: o.Engine, now: time.Now, traced: o.Traced}
	for code := range s.chars {
		s.chars[code] = '.'
	}
	for tier := range maxTiers {
		letter := &s.chars[codeMemory+byte(tier)]
		switch *letter = 'd'; {
		case tier >= len(o.Tiers):
		case strings.HasPrefix(o.Tiers[tier], "peer"):
			*letter = 'p'
		case o.Tiers[tier] == "object":
			*letter = 'o'
		}
	}
	s.chars[codeMemory], s.chars[codePending], s.chars[codeLate], s.chars[codeDir] = 'm', 'w', 'l', '/'

	var bad []error
	s.mu.specs = make(map[string]*hybrid.Coordinator, len(o.Specs))
	if len(o.Specs) > hybrid.MaxSpecs {
		bad = append(bad, fmt.Errorf("specs: %d of them, %d is the limit", len(o.Specs), hybrid.MaxSpecs))
	}
	for _, name := range slices.Sorted(maps.Keys(o.Specs)) {
		if err := hybrid.CheckName(name); err != nil {
			bad = append(bad, fmt.Errorf("specs: %w", err))
		}
		c, err := hybrid.New(o.Specs[name])
		if err != nil {
			bad = append(bad, fmt.Errorf("specs.%s: %w", name, err))
		}
		s.mu.specs[name] = c
	}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	return s, nil
}

// Query handles .kvfs/query, in JSON and in binary. as is the user that asks; nil may see
// everything.
func (s *Service) Query(ctx context.Context, as *event.Viewer, request []byte, answer io.Writer) {
	sc := s.take(as)
	defer s.give(sc)
	sc.by = tiers.UserOf(ctx)
	start := s.begun()
	if bytes.HasPrefix(request, []byte(binaryPrefix)) {
		s.ended(sc, start, s.binary(ctx, sc, request, answer))
		return
	}
	err := sc.parse(request, queryMembers)
	if err == nil {
		err = s.query(ctx, sc, answer)
	}
	finish(sc, answer, err)
	s.ended(sc, start, err)
}

// query executes a request. Most operations leave the answer in sc.out.
func (s *Service) query(ctx context.Context, sc *scratch, answer io.Writer) *strict.Error {
	q := &sc.q
	op, ok := operations[string(q.op)]
	if q.has&hasOp == 0 {
		return strict.Faulty("/op", "is missing: want exists, longest_hit, load_mask, store_mask, release or why")
	}
	if !ok {
		return strict.Faulty("/op", "%s is none of exists, longest_hit, load_mask, store_mask, release, why", quoted(q.op))
	}
	if err := q.allow(op.may, string(q.op)); err != nil {
		return err
	}
	if err := q.require(op.must); err != nil {
		return err
	}
	return op.do(s, ctx, sc, answer)
}

// finish writes the answer that is in sc.out, or err as one.
func finish(sc *scratch, answer io.Writer, err *strict.Error) {
	if err != nil {
		sc.out = appendError(sc.out[:0], err)
	}
	if len(sc.out) > 0 {
		_, _ = answer.Write(sc.out) // a reader that is gone needs no answer
	}
	sc.out = sc.out[:0]
}

// cancelled is the answer if the reader has gone or the daemon ends.
func cancelled(ctx context.Context) *strict.Error {
	if ctx.Err() == nil {
		return nil
	}
	return &strict.Error{Why: "the request was cancelled"}
}
