package transfer

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// PrefetchRequest asks for blocks to be brought into memory.
type PrefetchRequest struct {
	Request string        // names the work in logs and batches, and holds the leases
	Paths   [][]byte      // below the mount, the most urgent first
	As      *event.Viewer // a block that the user may not read is absent
	// Done is called once for each path, in any order, as soon as its result is known. Calls do not overlap. Done
	// must not block for long.
	Done func(i int, r PrefetchResult)
}

// PrefetchResult is the result of one path.
type PrefetchResult struct {
	Outcome PrefetchOutcome
	Bytes   int64 // loaded
	Err     error // of PrefetchFailed
}

// PrefetchOutcome says what happened to a block that was to be brought into memory.
type PrefetchOutcome uint8

// The outcomes.
const (
	PrefetchFailed   PrefetchOutcome = iota // a tier has it, but could not load it
	PrefetchAbsent                          // there is no such block
	PrefetchInMemory                        // it was there already
	PrefetchLoaded
	PrefetchPending // it is being written
)

// Limits of one Prefetch at a time. They leave the tiers to callers that wait for a single block.
const (
	PrefetchKeys  = 256
	prefetchBytes = 64 << 20 // or an eighth of the capacity if that is less, but at least one block
)

// prefetch is a Prefetch under way.
type prefetch struct {
	e    *Transfer
	r    PrefetchRequest
	max  int64         // bytes under way at most
	room chan struct{} // capacity 1: something has ended

	mu struct {
		sync.Mutex // held across Done; never taken with State.Mu held
		keys       int
		bytes      int64
		over       bool // Prefetch has returned: Done is not called any more
	}
}

// Prefetch brings blocks into memory, in order. It loads a bounded number of bytes at a time, so that callers that
// wait for a single block are not crowded out. It returns when Done has been called for all paths. When ctx is done,
// it begins no more loads, and the remaining paths fail with ctx's error.
func (tr *Transfer) Prefetch(ctx context.Context, r PrefetchRequest) {
	f := &prefetch{e: tr, r: r, max: min(prefetchBytes, tr.Opts.CapacityBytes/8), room: make(chan struct{}, 1)}
	told := make([]bool, len(r.Paths))
	f.r.Done = func(i int, res PrefetchResult) {
		told[i] = true
		r.Done(i, res)
	}
	next, asked := 0, 0
	for next < len(r.Paths) && ctx.Err() == nil {
		if next == asked {
			asked = f.ask(ctx, next)
			continue
		}
		n := f.begin(next, asked)
		next += n
		if n == 0 {
			f.wait(ctx)
		}
	}
	for ctx.Err() == nil && !f.idle() {
		f.wait(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.over = true
	for i := range told {
		if !told[i] {
			r.Done(i, PrefetchResult{Err: ctx.Err()})
		}
	}
}

func (f *prefetch) wait(ctx context.Context) {
	select {
	case <-f.room:
	case <-ctx.Done():
	}
}

func (f *prefetch) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.keys == 0
}

// prefetchBatch bounds how many names one hold of the lock looks up.
const prefetchBatch = 128

// askAhead is how many paths other nodes are asked about at a time. A node knows the answers only for some seconds, so it
// asks for those that it begins soon.
const askAhead = 8 * prefetchBatch

// ask asks other nodes about those of askAhead paths, from the n-th on, of which this node knows nothing. It returns the
// number of the first path after them.
func (f *prefetch) ask(ctx context.Context, n int) (end int) {
	end = min(n+askAhead, len(f.r.Paths))
	e := f.e
	if e.Asker == nil {
		return end
	}
	var unknown []string
	for batch := range slices.Chunk(f.r.Paths[n:end], prefetchBatch) {
		e.Mu.Lock()
		for _, path := range batch {
			unknown = e.names.AppendUnknownLocked(unknown, string(path))
		}
		e.Mu.Unlock()
	}
	e.names.Ask(ctx, unknown)
	return end
}

// begin finds or starts to load some paths, from the n-th on and before the end-th, and returns their number: 0 if too
// much is under way.
func (f *prefetch) begin(n, end int) int {
	f.mu.Lock()
	keys, bytes := f.mu.keys, f.mu.bytes
	f.mu.Unlock()
	wasKeys, wasBytes := keys, bytes
	var g state.Gone
	var found [prefetchBatch]prefetchFound
	count := 0
	e := f.e
	e.Mu.Lock()
	for ; count < len(found) && n+count < end; count++ {
		x := &found[count]
		*x = e.prefetchFindLocked(&f.r, n+count, keys == 0 || keys < PrefetchKeys && bytes < f.max, &g)
		if x.full {
			break
		}
		if x.p != nil {
			keys, bytes = keys+1, bytes+x.p.Size
			e.awaitPrefetchLocked(f, n+count, x)
		}
	}
	e.Mu.Unlock()
	e.Finish(&g)
	f.mu.Lock() // some may have ended by now
	f.mu.keys += keys - wasKeys
	f.mu.bytes += bytes - wasBytes
	f.mu.Unlock()
	f.start(n, found[:count])
	return count
}

// prefetchFound is where the block of a path is, and the load of it, if any.
type prefetchFound struct {
	result PrefetchResult
	p      *promotion // the load to wait for; the result comes with its end
	first  bool       // the caller starts p
	full   bool       // too much is under way for another one
}

// prefetchFindLocked finds the block of the i-th path, and makes its promotion if more loads may begin.
func (tr *Transfer) prefetchFindLocked(r *PrefetchRequest, i int, more bool, g *state.Gone) (x prefetchFound) {
	path := r.Paths[i]
	id := index.ID(0)
	if block.CheckPath(state.View(path)) == nil {
		id = tr.names.WalkLocked(string(path), g)
	}
	if id == 0 || tr.ExpiredLocked(id) || !tr.ShowsLocked(r.As, tr.Mu.Ix.Parent(id), id) {
		return prefetchFound{result: PrefetchResult{Outcome: PrefetchAbsent}}
	}
	en := tr.Mu.Ix.At(id)
	switch {
	case en.IsDir():
		return prefetchFound{result: PrefetchResult{Outcome: PrefetchAbsent}}
	case en.Flags()&(index.FlagUncommitted|index.FlagTemp) != 0:
		return prefetchFound{result: PrefetchResult{Outcome: PrefetchPending}}
	case !tr.NonresidentLocked(id, en):
		tr.names.LeaseLocked(id, en, tr.Now(), r.As, r.Request)
		return prefetchFound{result: PrefetchResult{Outcome: PrefetchInMemory}}
	case !more:
		return prefetchFound{full: true}
	}
	x.p, x.first = tr.promotionLocked(id, false)
	if x.p == nil { // the engine closes
		x.result = PrefetchResult{Err: block.ErrClosed}
	}
	return x
}

// awaitPrefetchLocked makes the promotion of x call f.ended when it ends.
func (tr *Transfer) awaitPrefetchLocked(f *prefetch, i int, x *prefetchFound) {
	p := x.p
	if x.first {
		p.Ahead, p.Request = true, f.r.Request
	}
	p.waiters++
	p.later = append(p.later, laterOpen{until: tr.Now() + int64(tr.Opts.PromoteTimeout), then: func(_ *os.File, err error) {
		if err == nil {
			tr.Mu.Lock()
			tr.names.LeaseLocked(p.id, tr.Mu.Ix.At(p.id), tr.Now(), f.r.As, f.r.Request)
			tr.Mu.Unlock()
			tr.names.CloseRead(p.id) // gives back the pin of the load
		}
		f.ended(i, p.Size, err)
	}})
}

// start reports the results that are known already, and starts the promotions; those of one tier become few jobs.
func (f *prefetch) start(n int, found []prefetchFound) {
	var first []*promotion
	f.mu.Lock()
	for i := range found {
		switch x := &found[i]; {
		case x.p == nil:
			f.r.Done(n+i, x.result)
		case x.first:
			first = append(first, x.p)
		}
	}
	f.mu.Unlock()
	f.e.startPromotions(first)
}

// ended follows the end of a promotion.
func (f *prefetch) ended(i int, size int64, err error) {
	r := PrefetchResult{Outcome: PrefetchLoaded, Bytes: size}
	if err != nil {
		r = f.failed(i, err)
	}
	f.mu.Lock()
	f.mu.keys--
	f.mu.bytes -= size
	if !f.mu.over {
		f.r.Done(i, r)
	}
	f.mu.Unlock()
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// failed returns the result after a promotion failed. The name may mean another block by now.
func (f *prefetch) failed(i int, err error) PrefetchResult {
	if !errors.Is(err, state.ErrStale) {
		return PrefetchResult{Err: err}
	}
	var g state.Gone
	e := f.e
	e.Mu.Lock()
	x := e.prefetchFindLocked(&f.r, i, false, &g)
	e.Mu.Unlock()
	e.Finish(&g)
	if x.full {
		return PrefetchResult{Err: err}
	}
	if x.result.Outcome == PrefetchAbsent {
		// The load found that the copy was bad or lost, and so the name was removed.
		key, _ := block.ParseKey(string(f.r.Paths[i]))
		switch e.names.WhyHere(key.Path()).Kind {
		case outcome.Corrupt:
			return PrefetchResult{Err: &block.Error{Op: "prefetch", Key: key, Err: block.ErrCorrupt}}
		case outcome.Unreachable, outcome.PeerGone:
			return PrefetchResult{Err: &block.Error{Op: "prefetch", Key: key, Err: block.ErrUnavailable}}
		}
	}
	return x.result
}

// MaxHintCalls bounds the Hints under way.
const MaxHintCalls = 16

// Hint begins to bring blocks into memory, in order, and returns at once. While MaxHintCalls requests are under way,
// it does nothing.
func (tr *Transfer) Hint(as *event.Viewer, request string, paths [][]byte) {
	if len(paths) == 0 {
		return
	}
	size := 0
	for _, p := range paths {
		size += len(p)
	}
	text, own := make([]byte, 0, size), make([][]byte, len(paths)) // the caller may reuse its buffers
	for i, p := range paths {
		text = append(text, p...)
		own[i] = text[len(text)-len(p):]
	}
	tr.Mu.Lock()
	defer tr.Mu.Unlock()
	if tr.Mu.Closed || !tr.hints.Take(1, MaxHintCalls) {
		return
	}
	tr.Work.Go(func() { // ends with the engine's context
		tr.Prefetch(tr.Ctx, PrefetchRequest{Request: request, Paths: own, As: as, Done: func(int, PrefetchResult) {}})
		tr.hints.Give(1)
	})
}
