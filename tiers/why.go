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
func (vd *verdicts) Why(path string) fate.Verdict {
	vd.Mu.Lock()
	defer vd.Mu.Unlock()
	return vd.whyLocked(path)
}

// WhyAsked is Why, but if this node does not know by itself whether other nodes have the block, it asks them first. It
// blocks for half a second at most then, or until the engine closes.
func (vd *verdicts) WhyAsked(path string) fate.Verdict {
	vd.Mu.Lock()
	unknown := vd.elsewhere.AppendUnknownLocked(nil, path)
	vd.Mu.Unlock()
	vd.elsewhere.Ask(vd.Ctx, unknown)
	return vd.Why(path)
}

// WhyOf returns why the block of an entry is not there, or that it is. The kernel holds a reference to the entry.
func (vd *verdicts) WhyOf(id index.ID) fate.Verdict {
	vd.Mu.Lock()
	defer vd.Mu.Unlock()
	if vd.Mu.Ix.Linked(id) {
		return vd.whyLocked(vd.Mu.Ix.Path(id))
	}
	return fate.Verdict{Kind: fate.Removed, Text: "it was removed, but a process still has it open"}
}

func (vd *verdicts) whyLocked(path string) fate.Verdict {
	if there, ok := vd.presentLocked(path); ok {
		return there
	}
	if v, ok := vd.Mu.Fates.Explain(path, func(path string) bool { return vd.Mu.Ix.Walk(path) != 0 }); ok {
		return v
	}
	if groups := vd.sameHashLocked(path); len(groups) > 0 {
		return fate.Verdict{Kind: fate.Elsewhere, Groups: groups,
			Text: "no block of this name was stored here, but one of the same hash is in " + strings.Join(groups, ", ")}
	}
	return vd.Mu.Fates.Nothing()
}

// presentLocked returns the verdict on a name that exists, and on one that cannot exist. ok is false for others.
func (vd *verdicts) presentLocked(path string) (v fate.Verdict, ok bool) {
	if block.CheckPath(path) != nil {
		return fate.Verdict{Kind: fate.NeverStored, Text: "no block can have this name"}, true
	}
	if id := vd.Mu.Ix.Walk(path); id != 0 {
		return vd.entryVerdictLocked(id, path), true
	}
	l, s := vd.elsewhere.SeekLocked(path)
	switch {
	case s == nil || !l.IsRegular():
		return v, false
	case state.ChargeOf(l.Size) > vd.Opts.CapacityBytes:
		return fate.TooLarge(s.Opts.Name, l.Size, vd.Opts.CapacityBytes), true
	case s == vd.Remote:
		return fate.Verdict{Kind: fate.Present, Tier: s.Opts.Name, Text: "another node has it"}, true
	}
	return below(s.Opts.Name), true
}

// below returns the verdict on a block that only secondary tiers have.
func below(tiers string) fate.Verdict {
	return fate.Verdict{Kind: fate.Present, Tier: tiers, Text: "it is in " + tiers + ", and comes into memory when it is opened"}
}

// entryVerdictLocked returns the verdict on a name that has an entry.
func (vd *verdicts) entryVerdictLocked(id index.ID, path string) fate.Verdict {
	en := vd.Mu.Ix.At(id)
	switch {
	case en.IsDir():
		return fate.Verdict{Kind: fate.Present, Text: "this is a directory"}
	case !en.Committed():
		return fate.Verdict{Kind: fate.Pending, Text: "it is being written"}
	case vd.ExpiredLocked(id):
		return fate.Verdict{Kind: fate.Expired, Time: time.Unix(0, vd.Mu.Ix.Expires(id)), Text: "its time to live has passed"}
	}
	tiers := strings.Join(vd.TierNamesLocked(id), ",")
	switch {
	case !vd.HollowLocked(id, en):
		return fate.Verdict{Kind: fate.Present, Tier: tiers, Text: "it is in memory"}
	case vd.lower.PromotingLocked(id) != "":
		return fate.Verdict{Kind: fate.Pending, Tier: tiers, Text: "it is on its way into memory from " + vd.lower.PromotingLocked(id)}
	case state.ChargeOf(en.Size) > vd.Opts.CapacityBytes:
		return fate.TooLarge(tiers, en.Size, vd.Opts.CapacityBytes)
	}
	if f := vd.Mu.Fates.Of(vd.Mu.Fates.Hash(path)); f != nil && f.Unread() && f.Time >= en.Atime { // and no read since
		v := f.Explain(vd.Opts.Kernels)
		v.Tier = tiers
		v.Text += "; it is still in " + tiers
		return v
	}
	return below(tiers)
}

// maxSameHash bounds the groups that sameHashLocked looks into.
const maxSameHash = 4096

// sameHashLocked returns up to eight other groups that have a block with the hash of the one at path.
func (vd *verdicts) sameHashLocked(path string) (groups []string) {
	group, hash, ok := strings.Cut(path, "/")
	if !ok {
		return nil
	}
	seen := 0
	vd.Mu.Ix.ReadDir(index.Root, 0, 0, func(dir index.ID, en *index.Entry, _ uint64) bool {
		if seen++; !en.IsDir() || vd.Mu.Ix.Name(dir) == group {
			return seen < maxSameHash
		}
		id := dir
		for rest, more := hash, true; more && id != 0; {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			id = vd.Mu.Ix.Lookup(id, name)
		}
		if id == 0 || vd.ExpiredLocked(id) {
			return seen < maxSameHash
		}
		if en := vd.Mu.Ix.At(id); en.Committed() && en.IsRegular() {
			groups = append(groups, vd.Mu.Ix.Name(dir))
		}
		return seen < maxSameHash && len(groups) < 8
	})
	return groups
}
