package tiers

import (
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// verdicts is the room that says why a block is not there.
type verdicts struct{ *core }

// Why returns why the block at a path below the mount is not there, or that it is. It takes the lock for a moment and
// does not wait. The engine remembers the last fate.MaxNames names to which something happened.
func (e *verdicts) Why(path string) fate.Verdict {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return e.whyLocked(path)
}

// WhyAsked is Why, but if this node does not know by itself whether other nodes have the block, it asks them first. It
// blocks for half a second at most then, or until the engine closes.
func (e *verdicts) WhyAsked(path string) fate.Verdict {
	e.Mu.Lock()
	unknown := e.elsewhere.AppendUnknownLocked(nil, path)
	e.Mu.Unlock()
	e.elsewhere.Ask(e.Ctx, unknown)
	return e.Why(path)
}

// WhyOf is Why for an entry that the kernel holds a reference to.
func (e *verdicts) WhyOf(id index.ID) fate.Verdict {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.Mu.Ix.Linked(id) {
		return e.whyLocked(e.Mu.Ix.Path(id))
	}
	return fate.Verdict{Kind: fate.Removed, Text: "it was removed, but a process still has it open"}
}

func (e *verdicts) whyLocked(path string) fate.Verdict {
	if there, ok := e.presentLocked(path); ok {
		return there
	}
	if v, ok := e.Mu.Fates.Explain(path, func(path string) bool { return e.Mu.Ix.Walk(path) != 0 }); ok {
		return v
	}
	if groups := e.sameHashLocked(path); len(groups) > 0 {
		return fate.Verdict{Kind: fate.Elsewhere, Groups: groups,
			Text: "no block of this name was stored here, but one of the same hash is in " + strings.Join(groups, ", ")}
	}
	return e.Mu.Fates.Nothing()
}

// presentLocked returns the verdict on a name that exists, and on one that cannot exist. ok is false for others.
func (e *verdicts) presentLocked(path string) (v fate.Verdict, ok bool) {
	if block.CheckPath(path) != nil {
		return fate.Verdict{Kind: fate.NeverStored, Text: "no block can have this name"}, true
	}
	if id := e.Mu.Ix.Walk(path); id != 0 {
		return e.entryVerdictLocked(id, path), true
	}
	l, s := e.elsewhere.SeekLocked(path)
	switch {
	case s == nil || !l.IsRegular():
		return v, false
	case state.ChargeOf(l.Size) > e.Opts.CapacityBytes:
		return fate.TooLarge(s.Opts.Name, l.Size, e.Opts.CapacityBytes), true
	case s == e.Remote:
		return fate.Verdict{Kind: fate.Present, Tier: s.Opts.Name, Text: "another node has it"}, true
	}
	return below(s.Opts.Name), true
}

// below returns the verdict on a block that only secondary tiers have.
func below(tiers string) fate.Verdict {
	return fate.Verdict{Kind: fate.Present, Tier: tiers, Text: "it is in " + tiers + ", and comes into memory when it is opened"}
}

// entryVerdictLocked returns the verdict on a name that has an entry.
func (e *verdicts) entryVerdictLocked(id index.ID, path string) fate.Verdict {
	en := e.Mu.Ix.At(id)
	switch {
	case en.IsDir():
		return fate.Verdict{Kind: fate.Present, Text: "this is a directory"}
	case !en.Committed():
		return fate.Verdict{Kind: fate.Pending, Text: "it is being written"}
	case e.ExpiredLocked(id):
		return fate.Verdict{Kind: fate.Expired, Time: time.Unix(0, e.Mu.Ix.Expires(id)), Text: "its time to live has passed"}
	}
	tiers := strings.Join(e.TierNamesLocked(id), ",")
	switch {
	case !e.HollowLocked(id, en):
		return fate.Verdict{Kind: fate.Present, Tier: tiers, Text: "it is in memory"}
	case e.lower.PromotingLocked(id) != "":
		return fate.Verdict{Kind: fate.Pending, Tier: tiers, Text: "it is on its way into memory from " + e.lower.PromotingLocked(id)}
	case state.ChargeOf(en.Size) > e.Opts.CapacityBytes:
		return fate.TooLarge(tiers, en.Size, e.Opts.CapacityBytes)
	}
	if f := e.Mu.Fates.Of(e.Mu.Fates.Hash(path)); f != nil && f.Unread() && f.Time >= en.Atime { // and no read since
		v := f.Explain(e.Opts.Kernels)
		v.Tier = tiers
		v.Text += "; it is still in " + tiers
		return v
	}
	return below(tiers)
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
	e.Mu.Ix.ReadDir(index.Root, 0, 0, func(dir index.ID, en *index.Entry, _ uint64) bool {
		if seen++; !en.IsDir() || e.Mu.Ix.Name(dir) == group {
			return seen < maxSameHash
		}
		id := dir
		for rest, more := hash, true; more && id != 0; {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			id = e.Mu.Ix.Lookup(id, name)
		}
		if id == 0 || e.ExpiredLocked(id) {
			return seen < maxSameHash
		}
		if en := e.Mu.Ix.At(id); en.Committed() && en.IsRegular() {
			groups = append(groups, e.Mu.Ix.Name(dir))
		}
		return seen < maxSameHash && len(groups) < 8
	})
	return groups
}
