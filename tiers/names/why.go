package names

import (
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// WhyHere returns why the block at a path below the mount is not there as far as this node knows, or that it is. It takes the lock for a moment and
// does not wait. The engine remembers the last outcome.MaxNames names to which something happened.
func (nm *Names) WhyHere(path string) outcome.Verdict {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	return nm.whyLocked(path)
}

// Why is WhyHere, but if this node does not know by itself whether other nodes have the block, it asks them first. It
// blocks for half a second at most then, or until the engine closes.
func (nm *Names) Why(path string) outcome.Verdict {
	nm.Mu.Lock()
	unknown := nm.AppendUnknownLocked(nil, path)
	nm.Mu.Unlock()
	nm.Ask(nm.Ctx, unknown)
	return nm.WhyHere(path)
}

// WhyOf returns why the block of an entry is not there, or that it is. The kernel holds a reference to the entry.
func (nm *Names) WhyOf(id index.ID) outcome.Verdict {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	if nm.Mu.Ix.Linked(id) {
		return nm.whyLocked(nm.Mu.Ix.Path(id))
	}
	return outcome.Verdict{Kind: outcome.Removed, Text: "it was removed, but a process still has it open"}
}

func (nm *Names) whyLocked(path string) outcome.Verdict {
	if there, ok := nm.presentLocked(path); ok {
		return there
	}
	if v, ok := nm.Mu.Outcomes.Explain(path, func(path string) bool { return nm.Mu.Ix.Walk(path) != 0 }); ok {
		return v
	}
	if groups := nm.sameHashLocked(path); len(groups) > 0 {
		return outcome.Verdict{Kind: outcome.Elsewhere, Groups: groups,
			Text: "no block of this name was stored here, but one of the same hash is in " + strings.Join(groups, ", ")}
	}
	return nm.Mu.Outcomes.Nothing()
}

// presentLocked returns the verdict on a name that exists, and on one that cannot exist. ok is false for others.
func (nm *Names) presentLocked(path string) (v outcome.Verdict, ok bool) {
	if block.CheckPath(path) != nil {
		return outcome.Verdict{Kind: outcome.NeverStored, Text: "no block can have this name"}, true
	}
	if id := nm.Mu.Ix.Walk(path); id != 0 {
		return nm.entryVerdictLocked(id, path), true
	}
	l, s := nm.SeekLocked(path)
	switch {
	case s == nil || !l.IsRegular():
		return v, false
	case catalog.ChargeOf(l.Size) > nm.Opts.CapacityBytes:
		return outcome.TooLarge(s.Opts.Name, l.Size, nm.Opts.CapacityBytes), true
	case s == nm.Remote:
		return outcome.Verdict{Kind: outcome.Present, Tier: s.Opts.Name, Text: "another node has it"}, true
	}
	return below(s.Opts.Name), true
}

// below returns the verdict on a block that only secondary tiers have.
func below(tiers string) outcome.Verdict {
	return outcome.Verdict{Kind: outcome.Present, Tier: tiers, Text: "it is in " + tiers + ", and comes into memory when it is opened"}
}

// entryVerdictLocked returns the verdict on a name that has an entry.
func (nm *Names) entryVerdictLocked(id index.ID, path string) outcome.Verdict {
	en := nm.Mu.Ix.At(id)
	switch {
	case en.IsDir():
		return outcome.Verdict{Kind: outcome.Present, Text: "this is a directory"}
	case !en.Committed():
		return outcome.Verdict{Kind: outcome.Pending, Text: "it is being written"}
	case nm.ExpiredLocked(id):
		return outcome.Verdict{Kind: outcome.Expired, Time: time.Unix(0, nm.Mu.Ix.Expires(id)), Text: "its time to live has passed"}
	}
	tiers := strings.Join(nm.TierNamesLocked(id), ",")
	switch {
	case !nm.NonresidentLocked(id, en):
		return outcome.Verdict{Kind: outcome.Present, Tier: tiers, Text: "it is in memory"}
	case nm.Copies.PromotingLocked(id) != "":
		return outcome.Verdict{Kind: outcome.Pending, Tier: tiers, Text: "it is on its way into memory from " + nm.Copies.PromotingLocked(id)}
	case catalog.ChargeOf(en.Size()) > nm.Opts.CapacityBytes:
		return outcome.TooLarge(tiers, en.Size(), nm.Opts.CapacityBytes)
	}
	if f := nm.Mu.Outcomes.Of(nm.Mu.Outcomes.Hash(path)); f != nil && f.Unread() && f.Time >= en.Atime() { // and no read since
		v := f.Explain(nm.Opts.Kernels)
		v.Tier = tiers
		v.Text += "; it is still in " + tiers
		return v
	}
	return below(tiers)
}

// maxSameHash bounds the groups that sameHashLocked looks into.
const maxSameHash = 4096

// sameHashLocked returns up to eight other groups that have a block with the hash of the one at path.
func (nm *Names) sameHashLocked(path string) (groups []string) {
	group, hash, ok := strings.Cut(path, "/")
	if !ok {
		return nil
	}
	seen := 0
	nm.Mu.Ix.ReadDir(index.Root, 0, 0, func(dir index.ID, en *index.Entry, _ uint64) bool {
		if seen++; !en.IsDir() || nm.Mu.Ix.Name(dir) == group {
			return seen < maxSameHash
		}
		id := dir
		for rest, more := hash, true; more && id != 0; {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			id = nm.Mu.Ix.Lookup(id, name)
		}
		if id == 0 || nm.ExpiredLocked(id) {
			return seen < maxSameHash
		}
		if en := nm.Mu.Ix.At(id); en.Committed() && en.IsRegular() {
			groups = append(groups, nm.Mu.Ix.Name(dir))
		}
		return seen < maxSameHash && len(groups) < 8
	})
	return groups
}
