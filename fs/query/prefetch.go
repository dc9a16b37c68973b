package query

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// progressEvery is the least time between two lines of progress.
const progressEvery = 100 * time.Millisecond

// maxPrefetchErrors bounds the list of errors in an answer.
const maxPrefetchErrors = 100

// Prefetch handles .kvfs/prefetch, as Query handles .kvfs/query.
func (s *Service) Prefetch(ctx context.Context, as *event.Viewer, request []byte, answer io.Writer) {
	sc := s.take(as)
	defer s.give(sc)
	start := s.begun()
	err := sc.parse(request, prefetchMembers)
	if err == nil {
		err = sc.q.listed()
	}
	var l *layout
	if err == nil {
		l, err = sc.q.names.prepare()
	}
	if err == nil {
		s.load(ctx, sc, l, answer)
	}
	finish(sc, answer, err)
	sc.q.op = opPrefetch
	s.ended(sc, start, err)
}

// load promotes the blocks and leaves the answer in sc.out.
func (s *Service) load(ctx context.Context, sc *scratch, l *layout, answer io.Writer) {
	n := &sc.q.names
	p := newProgress(n, bytesOf(&sc.states, n.count))
	if !sc.q.progress {
		s.loadAll(ctx, sc, l, p)
		sc.out = p.appendAnswer(sc.out[:0])
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() { // ends when all blocks are done; the code below waits for that
		defer close(done)
		s.loadAll(ctx, sc, l, p)
	}()
	var line []byte
	timer := time.NewTimer(progressEvery)
	defer timer.Stop()
	for {
		select {
		case <-done:
			sc.out = p.appendAnswer(sc.out[:0])
			return
		case <-timer.C:
		}
		if line = p.appendLine(line[:0]); len(line) > 0 {
			if _, err := answer.Write(line); err != nil {
				cancel() // the reader is gone
				<-done
				return
			}
		}
		timer.Reset(progressEvery)
	}
}

// loadAll gives all paths to the engine. Those of a block's ranks are adjacent.
func (s *Service) loadAll(ctx context.Context, sc *scratch, l *layout, p *progress) {
	n := &sc.q.names
	first := 0 // number of the file that path 0 belongs to
	f := files{sc: sc, give: func(paths [][]byte) {
		s.engine.Prefetch(ctx, transfer.PrefetchRequest{Request: sc.q.request, Paths: paths, As: sc.as, Done: func(i int, r transfer.PrefetchResult) {
			p.done(first+i, paths[i], r)
		}})
		first += len(paths)
		if ctx.Err() != nil {
			sc.arena, sc.files = nil, nil // loads that have begun may still read their paths
		}
	}}
	for i := range n.count {
		f.add(n, l, i, n.ranks)
	}
	f.flush()
}

// progress is the state of the blocks of a request.
type progress struct {
	names        *nameList
	total, ranks int

	mu struct {
		sync.Mutex // leaf
		results    []byte
		left       []int // files of each block that are not done; nil: one each
		done, told int   // blocks done; those in the last line
		bytes      int64
		errors     []prefetchError
	}
}

type prefetchError struct{ path, why string }

func newProgress(n *nameList, results []byte) *progress {
	p := &progress{names: n, total: n.count, ranks: n.ranks}
	p.mu.results = results
	if n.ranks > 1 {
		p.mu.left = make([]int, n.count)
		for i := range p.mu.left {
			p.mu.left[i] = n.ranks
		}
	}
	return p
}

// outcomes are the characters of results. Later ones are worse. A block of several ranks is as bad
// as its worst file.
const outcomes = "mlw.!"

// rank of an outcome in outcomes.
func outcomeRank(o transfer.PrefetchOutcome) byte {
	switch o {
	case transfer.PrefetchInMemory:
		return 0
	case transfer.PrefetchLoaded:
		return 1
	case transfer.PrefetchPending:
		return 2
	case transfer.PrefetchAbsent:
		return 3
	}
	return 4
}

// done records the outcome of a file.
func (p *progress) done(file int, path []byte, r transfer.PrefetchResult) {
	blk := file / p.ranks
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.results[blk] = max(p.mu.results[blk], outcomeRank(r.Outcome))
	p.mu.bytes += r.Bytes
	if r.Outcome == transfer.PrefetchFailed && len(p.mu.errors) < maxPrefetchErrors {
		why := "no reason is known"
		if r.Err != nil {
			why = block.Shorten(r.Err.Error(), strict.MaxText)
		}
		p.mu.errors = append(p.mu.errors, prefetchError{p.names.shown(string(path)), why})
	}
	if p.mu.left != nil {
		if p.mu.left[blk]--; p.mu.left[blk] > 0 {
			return
		}
	}
	p.mu.done++
}

// appendLine appends a line of progress, if anything changed since the last line.
func (p *progress) appendLine(out []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.done == p.mu.told {
		return out
	}
	p.mu.told = p.mu.done
	return append(p.appendCountsLocked(append(out, '{')), "}\n"...)
}

// appendCountsLocked appends the members that all lines have.
func (p *progress) appendCountsLocked(out []byte) []byte {
	out = strconv.AppendInt(append(out, `"done": `...), int64(p.mu.done), 10)
	out = appendNumber(out, "total", p.total)
	return appendNumber(out, "bytes", int(p.mu.bytes))
}

// appendAnswer appends the last line.
func (p *progress) appendAnswer(out []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var of [len(outcomes)]int
	out = append(out, `{"results": "`...)
	for _, rank := range p.mu.results {
		of[rank]++
		out = append(out, outcomes[rank])
	}
	out = p.appendCountsLocked(append(out, `", `...))
	out = appendNumber(out, "in_memory", of[0])
	out = appendNumber(out, "loaded", of[1])
	out = appendNumber(out, "absent", of[3])
	out = appendNumber(out, "pending", of[2])
	out = appendNumber(out, "failed", of[4])
	out = append(out, `, "errors": [`...)
	for i, e := range p.mu.errors {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = appendText(append(out, `{"path": `...), e.path)
		out = append(appendMember(out, "error", e.why), '}')
	}
	return append(out, "]}\n"...)
}
