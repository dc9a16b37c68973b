package slotmap

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/policy"
)

const (
	// maxSkips bounds how many blocks in use are passed over in one search for victims.
	maxSkips = 1024
	// maxVictims bounds how many victims one search finds.
	maxVictims = 1024
)

// Victim is a block that the Host is asked about. Its slot is pinned until Settle.
type Victim struct {
	id  SlotID
	Key block.Key
}

// Choose takes victims out of the order of a space, whatever their sizes, and pins them. Their slots
// have at least so many bytes, if there are that many victims and maxVictims allows it.
func (l *Map) Choose(sp *Space, bytes int64) (victims []Victim) {
	skips := 0
	sp.pol.Victims(func(pid uint32) policy.Verdict {
		s, slot := sp.byPolicyID(pid)
		id := s.slots[slot]
		e := l.table.at(id)
		switch {
		case bytes <= 0 || len(victims) == maxVictims || skips == maxSkips:
			return policy.Stop
		case e.pins > 0 || e.flags&flagPinned != 0:
			skips++
			return policy.Skip
		}
		bytes -= s.Header.SlotBytes
		victims = append(victims, l.mark(id))
		return policy.Evict
	})
	return victims
}

// mark pins a slot while the Host is asked about it.
func (l *Map) mark(id SlotID) Victim {
	e := l.table.at(id)
	e.flags = e.flags&^flagUpdated | flagEvicting
	e.pins++
	return Victim{id, format.ParsePath(l.table.path(e))}
}

// Settle gives up the victims for which leave is true, puts the others back, and unpins them all. It
// returns how many were given up.
func (l *Map) Settle(victims []Victim, leave []bool) (evicted int) {
	for i, v := range victims {
		e := l.table.at(v.id)
		// The Host agreed for one name. The block may have been renamed since, and the Host has not
		// agreed for the new name.
		ok := leave[i] && e.flags&flagUpdated == 0
		e.flags &^= flagEvicting | flagUpdated
		switch {
		case e.state != slotLive: // removed meanwhile
		case ok:
			l.GiveUp(v.id)
			evicted++
		default:
			l.order(v.id)
		}
		l.Unpin(v.id)
	}
	return evicted
}
