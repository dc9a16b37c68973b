package slotmap

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// Move is a block on its way to another slot of its class. Until EndMove its key leads to From, and
// both slots stay in use.
type Move struct {
	From, To    SlotID
	Size        int64
	Sum         block.Checksum
	Read, Write Place // of From and To
}

// Bytes is how many bytes of the device a block takes.
func (m *Move) Bytes() int64 { return max(format.AlignUp(m.Size), format.PageBytes) }

// BeginMoves takes free slots for live blocks of a retired slab: for up to n blocks of up to so many
// bytes together, but at least for one. It takes none if the class has no free slot. The caller passes
// each to EndMove.
func (l *Map) BeginMoves(s *Slab, n int, bytes int64) (list []Move) {
	for _, id := range s.slots {
		if id == 0 || l.table.at(id).state != slotLive {
			continue
		}
		m := Move{From: id, Read: l.Place(id)}
		m.Size, m.Sum = l.Content(id)
		if len(list) == n || len(list) > 0 && m.Bytes() > bytes {
			break
		}
		to, slot, count := s.class.TakeRun(1)
		if count == 0 {
			break
		}
		bytes -= m.Bytes()
		e := l.table.at(id)
		a, key := l.table.attrs(e), format.ParsePath(l.table.path(e))
		r := l.Record(key, &a)
		m.To = l.Bind(to, slot, key, m.Size, &r)
		m.Write = l.Place(m.To)
		l.Pin(id)
		list = append(list, m)
	}
	return list
}

// EncodeMove fills a page with the header of a block in its new slot. ok is false if the block is
// gone.
func (l *Map) EncodeMove(m *Move, page []byte) (ok bool) {
	e := l.table.at(m.From)
	if e.state != slotLive {
		return false
	}
	l.follow(m)
	if err := l.Encode(m.To, m.Sum.Sum, page); err != nil {
		panic("slot map: key checked by Store: " + err.Error())
	}
	return true
}

// follow gives the new slot the key and the attributes that the block has by now.
func (l *Map) follow(m *Move) {
	e := l.table.at(m.From)
	a, key := l.table.attrs(e), format.ParsePath(l.table.path(e))
	r := l.Record(key, &a)
	l.Rebind(m.To, key, &r)
}

// EndMove makes the key of a block lead to its new slot, and gives up the old one. The block keeps its
// place in the order of eviction. If the block is gone, or ok is false, EndMove gives up the new slot
// instead. dirty says that the header of the new slot may have been written.
func (l *Map) EndMove(m *Move, ok, dirty bool) {
	from := l.table.at(m.From)
	if !ok || from.state != slotLive {
		l.Abandon(m.To, dirty)
		l.Unpin(m.From)
		return
	}
	to := l.table.at(m.To)
	old, s := l.slabs[from.slab], l.slabs[to.slab]
	if from.flags&flagDirty != 0 { // updated since EncodeMove
		l.follow(m)
		l.MarkDirty(m.To)
	}
	s.Space.pol.Move(old.policyID(from.slot), s.policyID(to.slot))
	old.Space.leave(old)
	s.Space.enter(s)
	l.table.unlink(m.From)
	from.state, to.state, to.sum = slotGone, slotLive, m.Sum.Sum
	l.table.link(m.To)
	l.MarkDirty(m.From)
	l.Unpin(m.From)
}
