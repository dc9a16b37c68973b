package ledger

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/policy"
)

// maxSkips bounds how many blocks in use are passed over in one search for victims.
const maxSkips = 1024

// Victim is a block that the Host is asked about. Its slot is pinned until Settle.
type Victim struct {
	id  SlotID
	Key block.Key
}

// Choose takes up to n victims out of the order of a class and pins them.
func (l *Ledger) Choose(c *Class, n int) (victims []Victim) {
	skips := 0
	c.pol.Victims(func(pid uint32) policy.Verdict {
		s, slot := c.byPolicyID(pid)
		id := s.slots[slot]
		e := l.table.at(id)
		switch {
		case len(victims) == n || skips == maxSkips:
			return policy.Stop
		case e.pins > 0 || e.flags&flagPinned != 0:
			skips++
			return policy.Skip
		}
		victims = append(victims, l.mark(id))
		return policy.Evict
	})
	return victims
}

// mark pins a slot while the Host is asked about it.
func (l *Ledger) mark(id SlotID) Victim {
	e := l.table.at(id)
	e.flags = e.flags&^flagUpdated | flagEvicting
	e.pins++
	return Victim{id, format.ParsePath(l.table.path(e))}
}

// Settle gives up the victims for which leave is true, puts the others back, and unpins them all. It
// returns how many were given up.
func (l *Ledger) Settle(victims []Victim, leave []bool) (evicted int) {
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

// BetterSteal reports whether a slab of another class of the space should make room for class c. That
// is so if c has nothing to evict, or if the slab was used less recently than all of c.
func (l *Ledger) BetterSteal(sp *Space, c *Class) bool {
	var oldest SlotID
	c.pol.Victims(func(pid uint32) policy.Verdict {
		s, slot := c.byPolicyID(pid)
		oldest = s.slots[slot]
		return policy.Stop
	})
	if oldest == 0 {
		return true
	}
	cold := sp.coldest(c, l.idle)
	if cold == nil {
		return false
	}
	return cold.live == 0 || int32(cold.used-l.table.at(oldest).used) < 0
}

// idle reports whether all blocks of a slab may be evicted, as far as the ledger knows.
func (l *Ledger) idle(s *Slab) bool {
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		if e := l.table.at(id); e.state != slotLive || e.pins > 0 || e.flags&flagPinned != 0 {
			return false
		}
	}
	return true
}

// Steal chooses the coldest slab of another class of the space for class c, and all its blocks as
// victims. The slab gives out no slots until Unretire or DropEmpty. s is nil if there is none.
func (l *Ledger) Steal(sp *Space, c *Class) (s *Slab, victims []Victim) {
	s = sp.coldest(c, l.idle)
	if s == nil {
		return nil, nil
	}
	s.class.retire(s)
	for _, id := range s.slots {
		if id != 0 {
			s.class.pol.Remove(s.policyID(l.table.at(id).slot))
			victims = append(victims, l.mark(id))
		}
	}
	return s, victims
}
