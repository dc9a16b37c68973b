package peer

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A block that many nodes want at once would melt the node that has it. So that node sends it to few readers at a time, and
// tells the others to come back (rdma.ErrLater). When they do, those few have it, too, and serve the next: the time grows
// with the logarithm of the readers.
//
//	holder   of a block of spreadBytes, spreadLoans loans to readers that may come back
//	reader   asks all holders that it knows; if one has said later and none gave the block, it rests, and asks those
//	         that the index knows then. In the second half of its time it does not say that it may come back, and is
//	         served by whoever it asks.
const (
	spreadLoans = 2
	spreadBytes = 1 << 20 // of smaller blocks the answer costs as much as the block

	slowLoan = 300 * time.Millisecond // a loan that takes longer than this, and the bytes at slowRate a second, does not count
	slowRate = 16 << 20

	leastRest = 5 * time.Millisecond // each one is twice the one before
	mostRest  = 50 * time.Millisecond
)

// loans knows the loans of large blocks.
type loans struct {
	mu   sync.Mutex
	open map[lentBlock][]*time.Time // when each began
}

type lentBlock struct {
	path string
	seq  uint64
}

// enter begins a loan. It returns what ends it, or nil if a patient reader shall come back. Loans that take much longer
// than the block should do not count: their readers may have stopped.
func (l *loans) enter(b lentBlock, bytes int64, patient bool, now time.Time) (leave func()) {
	if bytes < spreadBytes {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	limit, running := slowLoan+time.Duration(bytes)*time.Second/slowRate, 0
	for _, at := range l.open[b] {
		if now.Sub(*at) < limit {
			running++
		}
	}
	if patient && running >= spreadLoans {
		return nil
	}
	if l.open == nil {
		l.open = map[lentBlock][]*time.Time{}
	}
	l.open[b] = append(l.open[b], &now)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open[b] = slices.DeleteFunc(l.open[b], func(at *time.Time) bool { return at == &now })
		if len(l.open[b]) == 0 {
			delete(l.open, b)
		}
	}
}

// mayComeBack reports whether a holder may tell the reader of a piece to come back: for half of its time.
func (t *Tier) mayComeBack(p *piece) bool { return p.left > t.opts.Timeout/2 }

// comeBack rests, and locates pieces again that holders have told to come back. It returns them.
func (t *Tier) comeBack(ctx context.Context, pieces []*piece) []*piece {
	t.counters.rests.Add(1)
	rest := mostRest
	for _, p := range pieces {
		rest = min(rest, max(leastRest, 2*p.rest))
	}
	rest = rest/2 + rand.N(rest)
	timer, stop := t.after(restTimer, rest)
	defer stop()
	select {
	case <-timer:
	case <-ctx.Done(): // fetchAll gives up
	}
	for _, p := range pieces {
		p.rest, p.later = max(leastRest, 2*p.rest), false
		p.left -= rest
		p.holders = t.locate(p.path, p.tr.Attrs.Seq, nil)
		rand.Shuffle(len(p.holders), func(i, j int) { p.holders[i], p.holders[j] = p.holders[j], p.holders[i] })
		slices.SortStableFunc(p.holders, func(a, b holder) int { // those in memory first, then those near, as in locate
			if a.Memory != b.Memory {
				return first(a.Memory)
			}
			if near := t.near(a.peer); near != t.near(b.peer) {
				return first(near)
			}
			return 0
		})
		p.holders = p.holders[:min(len(p.holders), maxHolders)]
		t.viaKeeper(p)
	}
	return pieces
}
