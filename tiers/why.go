package tiers

import (
	"errors"
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// verdicts is the room that says why a block is not there.
type verdicts struct {
	*core

	fates *fate.Memory // guarded by core.mu
}

// verdictLocked notes what happened to the block of an entry. The entry still has its name.
func (e *verdicts) verdictLocked(id index.ID, kind fate.Kind, tier string, why fate.Cause) {
	e.fates.Add(e.pathHashLocked(id), fate.Fate{
		Time: e.now(), Event: e.events.Next(), Kind: kind, Tier: tier, Reason: why.Reason, By: why.By,
	})
}

// noteLocked notes an event that says why a block is not where it was.
func (e *verdicts) noteLocked(ev event.Kind, tier string, id index.ID, why fate.Cause) {
	if ev != event.Evicted && ev != event.Removed {
		return
	}
	kind := why.Reason.Kind()
	if ev == event.Evicted {
		en := e.mu.ix.At(id)
		switch {
		case e.ownTiers(en) != 0, tier != "memory" && (en.Blob != 0 || e.mu.files[id] != nil):
			return // reads still find it
		case en.Tiers != 0: // reads find it while other nodes have it
			kind, tier, why.Reason = fate.PeerGone, e.remote.opts.Name, 0
		}
	}
	if kind == fate.Unreachable && e.remote != nil && tier == e.remote.opts.Name {
		kind = fate.PeerGone
	}
	if ev == event.Removed && tier == "" {
		// The last tier just lost its copy. The verdict on that says more.
		if e.fates.Is(e.pathHashLocked(id), e.events.Next()-1, why.Reason) {
			return
		}
	}
	e.verdictLocked(id, kind, tier, why)
}

// renamedVerdictLocked notes that the block at the path from was renamed to id.
func (e *verdicts) renamedVerdictLocked(from string, id index.ID, by fate.Actor) {
	e.fates.Add(e.fates.Hash(from), fate.Fate{Time: e.now(), Kind: fate.Renamed, By: by, To: e.mu.ix.Path(id)})
}

// judgeLocked notes that a promotion did not give the block, in time or at all.
func (e *verdicts) judgeLocked(p *promotion, kind fate.Kind, rule fate.Reason) {
	e.fates.Add(e.fates.Hash(p.Key.Path()), fate.Fate{Time: e.now(), Kind: kind, Tier: p.tier.opts.Name, Reason: rule})
}

// failedVerdictLocked notes why a promotion failed, if the error tells.
func (e *verdicts) failedVerdictLocked(p *promotion, err error) {
	if kind, rule := fate.OfLoad(err); kind != "" && !errors.Is(err, ErrStale) {
		e.judgeLocked(p, kind, rule)
	}
}

// Why returns why the block at a path below the mount is not there, or that it is. It takes the lock for a moment and
// does not wait. The engine remembers the last fate.MaxNames names to which something happened.
func (e *verdicts) Why(path string) fate.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.whyLocked(path)
}

// WhyOf is Why for an entry that the kernel holds a reference to.
func (e *verdicts) WhyOf(id index.ID) fate.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.ix.Linked(id) {
		return e.whyLocked(e.mu.ix.Path(id))
	}
	if f := e.mu.files[id]; f != nil && f.waits {
		return fate.Verdict{Kind: fate.Pending, Text: "it is being written"} // it then takes the name from another file
	}
	return fate.Verdict{Kind: fate.Removed, Text: "it was removed, but a process still has it open"}
}

func (e *verdicts) whyLocked(path string) fate.Verdict {
	if there, ok := e.presentLocked(path); ok {
		return there
	}
	if v, ok := e.fates.Explain(path, func(path string) bool { return e.mu.ix.Walk(path) != 0 }); ok {
		return v
	}
	if groups := e.sameHashLocked(path); len(groups) > 0 {
		return fate.Verdict{Kind: fate.Elsewhere, Groups: groups,
			Text: "no block of this name was stored here, but one of the same hash is in " + strings.Join(groups, ", ")}
	}
	return e.fates.Nothing()
}

// presentLocked returns the verdict on a name that exists, and on one that cannot exist. ok is false for others.
func (e *verdicts) presentLocked(path string) (v fate.Verdict, ok bool) {
	if block.CheckPath(path) != nil {
		return fate.Verdict{Kind: fate.NeverStored, Text: "no block can have this name"}, true
	}
	if id := e.mu.ix.Walk(path); id != 0 {
		return e.entryVerdictLocked(id, path), true
	}
	w := pathWalker{ix: e.mu.ix}
	if dir, name := w.split([]byte(path)); e.lookups.writingLocked(nil, dir, name) {
		return fate.Verdict{Kind: fate.Pending, Text: "it is being written"}, true
	}
	if e.remote == nil {
		return v, false
	}
	l, ok := e.elsewhere.locate(path)
	switch {
	case !ok || l.Mode&modeType != modeRegular:
		return v, false
	case chargeOf(l.Size) > e.opts.CapacityBytes:
		return fate.TooLarge(e.remote.opts.Name, l.Size, e.opts.CapacityBytes), true
	}
	return fate.Verdict{Kind: fate.Present, Tier: e.remote.opts.Name, Text: "another node has it"}, true
}

// entryVerdictLocked returns the verdict on a name that has an entry.
func (e *verdicts) entryVerdictLocked(id index.ID, path string) fate.Verdict {
	en := e.mu.ix.At(id)
	switch {
	case en.Mode&modeType == modeDir:
		return fate.Verdict{Kind: fate.Present, Text: "this is a directory"}
	case en.Flags&flagUncommitted != 0:
		return fate.Verdict{Kind: fate.Pending, Text: "it is being written"}
	case e.expiredLocked(id):
		return fate.Verdict{Kind: fate.Expired, Time: time.Unix(0, en.Expires), Text: "its time to live has passed"}
	}
	tiers := strings.Join(e.report.tierNamesLocked(id), ",")
	switch {
	case !e.hollowLocked(id, en):
		return fate.Verdict{Kind: fate.Present, Tier: tiers, Text: "it is in memory"}
	case e.mu.promotions[id] != nil:
		return fate.Verdict{Kind: fate.Pending, Tier: tiers, Text: "it is on its way into memory from " + e.mu.promotions[id].tier.opts.Name}
	case chargeOf(en.Size) > e.opts.CapacityBytes:
		return fate.TooLarge(tiers, en.Size, e.opts.CapacityBytes)
	}
	if f := e.fates.Of(e.fates.Hash(path)); f != nil && f.Unread() && f.Time >= en.Atime { // and no read since
		v := f.Explain(e.opts.Kernels)
		v.Tier = tiers
		v.Text += "; it is still in " + tiers
		return v
	}
	return fate.Verdict{Kind: fate.Present, Tier: tiers, Text: "it is in " + tiers + ", and comes into memory when it is opened"}
}

// maxSameHash bounds the groups that sameHashLocked looks into.
const maxSameHash = 4096

// sameHashLocked returns up to eight other groups that have a block with the hash of the one at path.
func (e *verdicts) sameHashLocked(path string) (groups []string) {
	group, hash, ok := strings.Cut(path, "/")
	if !ok {
		return nil
	}
	seen := 0
	e.mu.ix.ReadDir(index.Root, 0, 0, func(dir index.ID, en *index.Entry, _ uint64) bool {
		if seen++; en.Mode&modeType != modeDir || e.mu.ix.Name(dir) == group {
			return seen < maxSameHash
		}
		id := dir
		for rest, more := hash, true; more && id != 0; {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			id = e.mu.ix.Lookup(id, name)
		}
		if id == 0 || e.expiredLocked(id) {
			return seen < maxSameHash
		}
		if en := e.mu.ix.At(id); en.Flags&flagUncommitted == 0 && en.Mode&modeType == modeRegular {
			groups = append(groups, e.mu.ix.Name(dir))
		}
		return seen < maxSameHash && len(groups) < 8
	})
	return groups
}
