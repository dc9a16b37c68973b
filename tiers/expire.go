package tiers

import (
	"context"
	"time"

	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// expiryTick is the time between two rounds of runExpiry. Look-ups and opens check by
// themselves, so it only bounds how long expired bytes stay in memory.
const expiryTick = time.Second

// runExpiry removes files past their time to live, temporary files that were not open for
// TempExpiry, versions that no process can name any more, and groups without files.
func (e *space) runExpiry(ctx context.Context) {
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
		line := e.report.summarizeLocked(&lane.Batch{})
		e.mu.Unlock()
		e.finish(&g)
		e.drafts.expireVersions()
		strays = e.elsewhere.settleStrays(strays)
		e.report.logSummary(line)
		e.opens.tellTouched()
		e.loads.expirePromotions()
	}
}

func (e *space) expireLocked(g *gone) {
	now := e.now()
	for at, id, ok := e.mu.expiries.Due(now); ok; at, id, ok = e.mu.expiries.Due(now) {
		if !e.mu.ix.Valid(id) {
			continue
		}
		en := e.mu.ix.At(id)
		if en.Expires != at || !e.mu.ix.Linked(id) || en.Flags&flagUncommitted != 0 {
			continue
		}
		e.mu.counters.Expired++
		e.names.dropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
	}
}
