package peer

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/peer/pace"
)

// cutReason says why an attempt was cut off.
type cutReason uint8

const (
	notCut     cutReason = iota
	cutTimeout           // no block came for too long
	cutHedge             // a second holder was faster
)

const (
	// minSilence is the default of Options.Silence. silenceFactor multiplies the median of the
	// recent fetches of that size.
	minSilence    = 300 * time.Millisecond
	silenceFactor = 4
)

// attempt is one request to one holder for a group of pieces, and the hedge that may run beside it.
// One goroutine runs it.
//
// Both timers start again with each block that comes. So a large request has the time that it
// needs, and a stalled one has not. The limit timer is short: it checks whether any byte came
// since. Its length depends on how fast others were. The hedge has a limit timer of its own.
//
//	while pieces are open, or a hedge is under way:
//	  a piece came or failed      settle it, or leave it to the hedge or the next holder
//	  the hedge timer ran out     fetch the first open piece from its second holder
//	  the hedge came              cut off the request, unless the piece has come meanwhile
//	  a limit timer ran out       cut off the request or the hedge, unless bytes came and time is left;
//	                              if none came, test the other holders (Tier.test)
//
// A request that is cut off still answers for each piece, by the contract of Fetch. Only then may
// another writer use the destination of the piece, and after rdma.ErrUnsafe never: the piece fails as unavailable, after
// which the engine takes another file.
type attempt struct {
	t      *Tier
	ctx    context.Context
	peer   member
	pieces []*piece
	results
	request *pace.Cut
	cut     cutReason
	last    time.Time // when the request began, or the latest piece came or failed
	moved   time.Time // when the request began, or the latest piece came

	limit, hedgeTime       <-chan time.Time
	stopLimit, stopHedging func()
	bound                  bound  // of the request; time is for one piece
	hedge                  *hedge // nil: none is under way
}

// bound is how long a request, or a hedge, may take.
type bound struct {
	time     time.Duration // for all
	silence  time.Duration // in which some bytes must come
	progress atomic.Int64  // grows with all bytes that come
	seen     int64         // its value when the request began, a piece came, or the limit timer ran out
}

// look reports whether nothing came since the last look.
func (b *bound) look() (silent bool) {
	was := b.seen
	b.seen = b.progress.Load()
	return b.seen == was
}

// results is the state of the pieces of an attempt, by index.
type results struct {
	open    []bool // the request has not answered for the piece
	count   int    // of open pieces
	settled []bool // the piece has its outcome
}

// fetchGroup asks the first holder of the pieces, which they have in common, for all of them. It
// returns the pieces without an outcome, with that holder removed from their lists.
func (t *Tier) fetchGroup(ctx context.Context, pieces []*piece) (rest []*piece) {
	var bytes int64
	for _, p := range pieces {
		bytes += p.tr.Size
	}
	took, ok := t.acquire(ctx, pieces, bytes)
	if !ok {
		return pieces
	}
	defer t.room.Release(took)
	a := &attempt{t: t, ctx: ctx, peer: pieces[0].holders[0].peer, pieces: pieces, stopLimit: func() {}, stopHedging: func() {}}
	a.results = results{open: make([]bool, len(pieces)), count: len(pieces), settled: make([]bool, len(pieces))}
	for i := range a.open {
		a.open[i] = true
	}
	a.run()
	waited := a.waited()
	for i, p := range pieces {
		if !a.settled[i] {
			p.left -= waited
			rest = append(rest, p)
		}
	}
	return rest
}

// acquire waits for room for pieces: for opts.Timeout in sum over all holders of a piece. False: there was none, and
// fetchAll gives up.
func (t *Tier) acquire(ctx context.Context, pieces []*piece, bytes int64) (took int64, ok bool) {
	limit := t.opts.Timeout
	for _, p := range pieces {
		limit = min(limit, t.opts.Timeout-p.queued)
	}
	begun := t.now()
	took, err := t.room.Acquire(ctx, bytes, func() (<-chan time.Time, func()) { return t.after(roomTimer, limit) })
	for _, p := range pieces {
		p.queued += t.now().Sub(begun)
		if err != nil {
			p.left = 0
		}
	}
	return took, err == nil
}

func (a *attempt) run() {
	t := a.t
	// The limit timer bounds the request; the deadline is for callees that look for one.
	a.request = pace.NewCut(a.ctx, time.Now().Add(t.opts.Timeout*time.Duration(len(a.pieces)+1)))
	defer a.request.Cut(context.Canceled)
	events := make(chan fetched, len(a.pieces)) // room for all, so Done does not block
	fetches := make([]*cluster.Fetch, len(a.pieces))
	for i, p := range a.pieces {
		fetches[i] = t.newFetch(p, i, p.tr.File, &a.bound.progress, events)
	}
	t.counters.requests.Add(1)
	t.counters.fetches.Add(uint64(len(fetches)))
	a.moved = t.now()
	a.last = a.moved
	a.bound.time, a.bound.silence = t.opts.Timeout, a.silenceLimit(a.pieces[0], a.peer, 1)
	for _, p := range a.pieces {
		a.bound.time = min(a.bound.time, share(p.left, p, 1))
	}
	watched := make(chan struct{})
	watch := func() { // ends with the request, which it cuts off if need be
		defer close(watched)
		a.watch(events)
	}
	if len(a.pieces) == 1 { // few take so long that somebody has to watch
		wait := t.patience.Begin(watch)
		a.peer.Fetch(a.request, fetches)
		if t.patience.End(wait) {
			f := <-events
			a.answered(&f)
			return
		}
	} else {
		go watch()
		a.peer.Fetch(a.request, fetches)
	}
	<-watched
}

// watch follows the request until all pieces have their answers.
func (a *attempt) watch(events <-chan fetched) {
	a.setTimers()
	defer func() { a.stopLimit(); a.stopHedging() }()
	for a.count > 0 || a.hedge != nil {
		var hedged <-chan fetched
		var hedgeLimit <-chan time.Time
		if a.hedge != nil {
			hedged, hedgeLimit = a.hedge.done, a.hedge.limit
		}
		select {
		case f := <-events:
			a.answered(&f)
		case f := <-hedged:
			a.hedgeAnswered(&f)
		case <-a.limit:
			a.outOfTime()
		case <-a.hedgeTime:
			a.startHedge()
		case <-hedgeLimit:
			a.hedgeOutOfTime()
		}
	}
}

// share is how much of a time for a piece one holder has: half if more holders than those being asked have it.
func share(d time.Duration, p *piece, asked int) time.Duration {
	if len(p.holders) > asked {
		d /= 2
	}
	return d
}

// silenceLimit is how long a peer may send nothing of a piece that asked peers are asked for.
func (a *attempt) silenceLimit(p *piece, from member, asked int) time.Duration {
	return share(a.t.silence(from.Name(), p.tr.Size), p, asked)
}

// silence returns the time in which a holder must send something of a block. It doubles with each
// time that this holder did not, although it answers probes: the holder may be slow rather than
// gone.
func (t *Tier) silence(peer string, size int64) time.Duration {
	d := t.opts.Silence
	if slow, ok := t.speed.Quantile(size, 0.5); ok {
		d = max(d, silenceFactor*slow)
	}
	return min(d<<t.silent.Count(peer, t.now()), t.opts.Timeout)
}

// outOfTime handles the limit timer.
func (a *attempt) outOfTime() {
	t := a.t
	left := a.bound.time - t.now().Sub(a.last)
	silent := a.bound.look()
	if !silent && left > 0 {
		a.stopLimit()
		a.limit, a.stopLimit = t.after(limitTimer, min(a.bound.silence, left))
		return
	}
	a.cutOff(cutTimeout)
	if silent {
		t.silent.Add(a.peer.Name(), a.last, t.now())
		t.test(a.pieces)
	}
}

// test finds out which holders of pieces answer, because one was silent: this node may have lost all of them, and readers
// would wait for one after the other. Those that do not answer are asked nothing until a probe succeeds. The tests end
// before a second holder that is silent too has had its time.
func (t *Tier) test(pieces []*piece) {
	for _, p := range pieces {
		for _, h := range p.holders {
			name := h.peer.Name()
			if _, tested := t.tests.LoadOrStore(name, true); tested {
				continue
			}
			limit := t.silence(name, p.tr.Size) / 3
			if !t.background(func() {
				ctx, cancel := context.WithTimeout(t.ctx, limit)
				defer cancel()
				defer t.tests.Delete(name)
				h.peer.Test(ctx)
			}) {
				t.tests.Delete(name)
			}
		}
	}
}

// restart starts both timers again, after something has come.
func (a *attempt) restart() {
	a.last = a.t.now()
	a.bound.look()
	a.setTimers()
}

func (a *attempt) setTimers() {
	t := a.t
	a.stopLimit()
	a.stopHedging()
	a.limit, a.hedgeTime = nil, nil
	if a.count == 0 || a.cut != notCut {
		return
	}
	a.limit, a.stopLimit = t.after(limitTimer, min(a.bound.silence, a.bound.time))
	a.planHedge()
}

// planHedge sets the hedge timer, if the first open piece has a second holder.
func (a *attempt) planHedge() {
	t, at := a.t, a.first()
	if at < 0 || a.hedge != nil || a.cut != notCut || t.opts.HedgeQuantile == 0 || len(a.pieces[at].holders) < 2 || a.pieces[at].asks {
		return
	}
	if d, ok := t.speed.Quantile(a.pieces[at].tr.Size, t.opts.HedgeQuantile); ok {
		a.hedgeTime, a.stopHedging = t.after(hedgeTimer, d)
	}
}

// first is the next expected piece.
func (a *attempt) first() int {
	for i, open := range a.open {
		if open {
			return i
		}
	}
	return -1
}

// answered handles the answer of the request for one piece.
func (a *attempt) answered(f *fetched) {
	t, p := a.t, a.pieces[f.at]
	a.open[f.at] = false
	a.count--
	switch {
	case f.err == nil:
		a.moved = t.now()
		t.speed.Add(p.tr.Size, a.moved.Sub(a.last))
		t.silent.Clear(a.peer.Name())
		t.counters.fetchedBytes.Add(uint64(p.tr.Size))
		t.settle(p, f)
		a.settled[f.at] = true
		a.dropHedge(f.at)
	case errors.Is(f.err, rdma.ErrUnsafe): // nothing else may be put into the destination
		t.failed(p, p.holders[0], f.err, a.cut)
		p.holders, p.left = nil, 0
		a.dropHedge(f.at)
	case a.cut == cutHedge && len(p.holders) == 1:
		// It was not its turn, and no other node has it: try once more.
	case a.cut == cutHedge:
		p.holders, p.asks = p.holders[1:], false // it was only too slow
	default:
		t.failed(p, p.holders[0], f.err, a.cut)
	}
	if a.hedge != nil && a.hedge.came != nil && a.hedge.at == f.at {
		a.takeHedge()
	}
	a.restart()
}

// dropHedge ends the hedge if it is for that piece.
func (a *attempt) dropHedge(at int) {
	if a.hedge != nil && a.hedge.at == at {
		a.closeHedge()
	}
}

// waited is how long the request has stood still.
func (a *attempt) waited() time.Duration {
	d := a.t.now().Sub(a.moved)
	if a.cut == cutTimeout {
		d = max(d, min(a.bound.silence, a.bound.time))
	}
	return d
}

// cutOff ends the request.
func (a *attempt) cutOff(why cutReason) {
	a.cut = why
	a.stopLimit()
	a.stopHedging()
	a.limit, a.hedgeTime = nil, nil
	if why == cutTimeout {
		a.request.Cut(context.DeadlineExceeded)
	} else {
		a.request.Cut(context.Canceled)
	}
}

// hedge is the fetch of one piece from a second holder, into memory of its own.
type hedge struct {
	at   int // the piece
	from holder
	file *os.File
	done chan fetched // capacity 1
	came *fetched     // it came, and waits for the request to let go of the destination

	request   *pace.Cut
	cut       cutReason
	began     time.Time
	bound     bound
	limit     <-chan time.Time
	stopLimit func()

	returned chan struct{} // closed when nothing uses file any more
}

// startHedge begins to fetch the first open piece from its second holder, if there is
// room for its bytes.
func (a *attempt) startHedge() {
	t := a.t
	a.hedgeTime = nil
	at := a.first()
	if at < 0 || a.hedge != nil || a.cut != notCut {
		return
	}
	p := a.pieces[at]
	second := slices.IndexFunc(p.holders[1:], func(h holder) bool { // not from another zone if the first is in this one
		return h.peer.Usable() && (t.near(h.peer) || !t.near(p.holders[0].peer))
	}) + 1
	if second == 0 || !t.room.Try(p.tr.Size) {
		return
	}
	file, err := memoryFile()
	if err != nil {
		t.room.Release(p.tr.Size)
		return
	}
	t.counters.hedges.Add(1)
	t.counters.requests.Add(1)
	t.counters.fetches.Add(1)
	h := &hedge{
		at: at, from: p.holders[second], file: file, done: make(chan fetched, 1), began: t.now(), returned: make(chan struct{}),
	}
	a.hedge = h
	left := p.left - h.began.Sub(a.moved)
	h.request = pace.NewCut(a.ctx, time.Now().Add(left)) // hedgeOutOfTime bounds it
	h.bound.time, h.bound.silence = share(left, p, 2), a.silenceLimit(p, h.from.peer, 2)
	h.limit, h.stopLimit = t.after(limitTimer, min(h.bound.silence, h.bound.time))
	fetch := t.newFetch(p, at, file, &h.bound.progress, h.done)
	go func() { // ends with h.request at the latest; closeHedge waits for it
		defer close(h.returned)
		h.from.peer.Fetch(h.request, []*cluster.Fetch{fetch})
	}()
}

// hedgeOutOfTime handles the limit timer of the hedge.
func (a *attempt) hedgeOutOfTime() {
	t, h := a.t, a.hedge
	left := h.bound.time - t.now().Sub(h.began)
	silent := h.bound.look()
	h.stopLimit()
	if h.limit = nil; !silent && left > 0 {
		h.limit, h.stopLimit = t.after(limitTimer, min(h.bound.silence, left))
		return
	}
	h.cut = cutTimeout
	h.request.Cut(context.DeadlineExceeded) // hedgeAnswered continues
	if silent {
		t.silent.Add(h.from.peer.Name(), h.began, t.now())
	}
}

// memoryFile returns an empty file in memory.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("kvfs-hedge", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "kvfs-hedge"), nil
}

// hedgeAnswered handles the answer of the second holder.
func (a *attempt) hedgeAnswered(f *fetched) {
	h := a.hedge
	p := a.pieces[h.at]
	if f.err != nil {
		a.closeHedge()
		a.t.failed(p, h.from, f.err, h.cut)
		a.planHedge()
		return
	}
	a.t.counters.fetchedBytes.Add(uint64(p.tr.Size))
	h.came, h.done, h.limit = f, nil, nil
	a.moved = a.t.now()
	if !a.open[h.at] {
		a.takeHedge()
		return
	}
	a.cutOff(cutHedge) // answered continues
}

// takeHedge copies the bytes of the second holder to the destination.
func (a *attempt) takeHedge() {
	h := a.hedge
	p := a.pieces[h.at]
	if err := copyFile(p.tr.File, h.file, p.tr.Size); err != nil {
		a.t.failed(p, h.from, err, notCut)
	} else {
		a.t.counters.hedgeWins.Add(1)
		a.t.settle(p, h.came)
		a.settled[h.at] = true
	}
	a.closeHedge()
}

// closeHedge ends a hedge, and waits until nothing writes to its file.
func (a *attempt) closeHedge() {
	h := a.hedge
	h.stopLimit()
	h.request.Cut(context.Canceled)
	<-h.returned
	h.file.Close()
	a.t.room.Release(a.pieces[h.at].tr.Size)
	a.hedge = nil
}

// copyFile copies the first size bytes of a file in memory.
func copyFile(to, from *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	data, err := unix.Mmap(int(from.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	_, err = to.WriteAt(data, 0)
	return errors.Join(err, unix.Munmap(data))
}
