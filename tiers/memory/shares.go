package memory

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
)

// Share is what a tier has of a group.
type Share struct{ Blocks, Bytes int64 }

// Shares returns what the tiers of this node below memory have of each group, by their names. It goes through all
// files, without keeping others from the lock for long.
func (as Accounts) Shares() map[block.GroupID]map[string]Share {
	e := as.e
	byGroup := map[*room.Group][]Share{}
	e.eachFile(func(_ index.ID, en *index.Entry) {
		if e.OwnTiers(en) == 0 {
			return
		}
		g := e.Mu.Room.Group(en.Group())
		if byGroup[g] == nil {
			byGroup[g] = make([]Share, len(e.Tiers))
		}
		for i, s := range e.Tiers {
			if en.Tiers()&s.Bit != 0 {
				byGroup[g][i].Blocks++
				byGroup[g][i].Bytes += en.Size()
			}
		}
	})
	out := map[block.GroupID]map[string]Share{}
	for g, shares := range byGroup {
		tiers := map[string]Share{}
		for i, s := range e.Tiers {
			if s != e.Remote {
				tiers[s.Opts.Name] = shares[i]
			}
		}
		out[g.Name()] = tiers
	}
	return out
}

// GroupStats is a snapshot of one group.
type GroupStats struct {
	Name       block.GroupID
	Pinned     bool
	QuotaBytes int64
	UsedBytes  int64
	BlockBytes int64 // configured or learned; 0: not known

	Stored, Found uint64 // commits of blocks; look-ups and opens that found one
}

// Groups returns a snapshot of the groups that are configured or have files, about in order of first sight.
func (as Accounts) Groups() []GroupStats {
	e := as.e
	e.Mu.Lock()
	defer e.Mu.Unlock()
	out := []GroupStats{}
	for g := range e.Mu.Room.Groups() {
		out = append(out, GroupStats{g.Name(), g.Pinned(), g.Options().QuotaBytes, g.Used(), g.BlockBytes(), g.Stored, g.Found})
	}
	return out
}
