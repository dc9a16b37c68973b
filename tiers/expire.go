package tiers

import (
	"container/heap"
	"context"
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// expiry is one time to live. Entries that were changed or freed since leave
// theirs behind; runExpiry sees that the times differ.
type expiry struct {
	at int64
	id index.ID
}

type expiryHeap []expiry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *expiryHeap) Push(x any) { *h = append(*h, x.(expiry)) }

// Pop implements heap.Interface.
func (h *expiryHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func (h *expiryHeap) add(at int64, id index.ID) { heap.Push(h, expiry{at, id}) }

// expiryTick is how often runExpiry looks. Look-ups and opens check by
// themselves, so the tick only bounds how long dead bytes stay in memory.
const expiryTick = time.Second

// runExpiry removes what is past its time to live, temporary files that nobody
// has had open for TempExpiry, versions that nobody can name any more, and groups without files.
func (e *Engine) runExpiry(ctx context.Context) {
	t := time.NewTicker(expiryTick)
	defer t.Stop()
	var strays []index.ID
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var g gone
		e.mu.Lock()
		e.expireLocked(&g)
		e.mu.room.Forget()
		line := e.summarizeLocked(&lane.Batch{})
		e.mu.Unlock()
		e.finish(&g)
		e.expireVersions()
		strays = e.settleStrays(strays)
		e.logSummary(line)
		e.tellTouched()
		e.expirePromotions()
	}
}

func (e *Engine) expireLocked(g *gone) {
	now := e.now()
	for len(e.mu.expiries) > 0 && e.mu.expiries[0].at <= now {
		x := heap.Pop(&e.mu.expiries).(expiry)
		if !e.mu.ix.Valid(x.id) {
			continue
		}
		en := e.mu.ix.At(x.id)
		if en.Expires != x.at || !e.mu.ix.Linked(x.id) || en.Flags&flagUncommitted != 0 {
			continue
		}
		e.mu.counters.Expired++
		e.dropNameLocked(x.id, en, BlockRemoved, fate.Cause{Reason: fate.ReasonExpired}, g)
	}
}
