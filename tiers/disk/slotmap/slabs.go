package slotmap

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// AddSlab takes a slab into use, with all its slots free.
func (l *Map) AddSlab(s *Slab) {
	s.Space.Add(s)
	for i, o := range l.slabs {
		if o == nil {
			s.ID = uint32(i)
			l.slabs[i] = s
			return
		}
	}
	s.ID = uint32(len(l.slabs))
	l.slabs = append(l.slabs, s)
}

// RemoveSlab takes a slab out of use. The slab has left its class.
func (l *Map) RemoveSlab(s *Slab) {
	l.slabs[s.ID] = nil
	s.Space.remove(s)
}

// ClearLeast empties the slab of a space that is the least loss, without headers: one with the fewest
// pinned blocks, and among those the emptiest. The slab has then left its class. It returns nil if
// there is none.
func (l *Map) ClearLeast(sp *Space) (least *Slab) {
	leastPinned := 0
	for s := range sp.All() {
		pinned := l.pinnedIn(s)
		if least == nil || pinned < leastPinned || pinned == leastPinned && s.live < least.live {
			least, leastPinned = s, pinned
		}
	}
	if least == nil {
		return nil
	}
	for _, id := range least.slots {
		if id == 0 {
			continue
		}
		if l.table.at(id).state == slotLive {
			l.leave(id)
		}
		l.table.at(id).flags |= flagZeroed
		l.free(id)
	}
	least.class.retire(least)
	sp.drop(least)
	return least
}

// pinnedIn counts the blocks of a slab that the user has pinned.
func (l *Map) pinnedIn(s *Slab) (n int) {
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		if e := l.table.at(id); e.state == slotLive && e.flags&flagPinned != 0 {
			n++
		}
	}
	return n
}

// Forget drops all blocks of a slab, whose device is down, and returns their keys.
func (l *Map) Forget(s *Slab) (keys []block.Key) {
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		e := l.table.at(id)
		if e.state == slotLive {
			keys = append(keys, format.ParsePath(l.table.path(e)))
			l.leave(id)
			l.free(id)
		}
	}
	return keys
}

// Headers returns copies of the headers of a slab's live blocks.
func (l *Map) Headers(s *Slab) []format.SlotHeader {
	list, _ := l.headers(s, s.slots)
	return list
}

// headers returns copies of the headers of live blocks. settled says that there are no other blocks, and no header to write.
func (l *Map) headers(s *Slab, slots []SlotID) (list []format.SlotHeader, settled bool) {
	var keys []byte
	settled = true
	for _, id := range slots {
		if id == 0 {
			continue
		}
		e := l.table.at(id)
		settled = settled && e.state == slotLive && e.flags&flagDirty == 0
		if e.state == slotLive {
			h := l.table.header(e, s.Header.Epoch)
			first := len(keys)
			keys = append(keys, h.Key...)
			h.Key = keys[first:len(keys):len(keys)]
			list = append(list, h)
		}
	}
	return list, settled
}

// Settled returns copies of the headers of a slab's live blocks in n slots from first on. ok is false if the slab has no longer
// that epoch, or if the header of one of its slots is not on the device as it is to be.
func (l *Map) Settled(s *Slab, epoch uint64, first, n uint32) (list []format.SlotHeader, ok bool) {
	if l.slabs[s.ID] != s || s.Header.Epoch != epoch || s.retired || int(first) >= len(s.slots) {
		return nil, false
	}
	return l.headers(s, s.slots[first:min(int(first+n), len(s.slots))])
}

// Held returns the live blocks of part i of the slot map, from 0. more is false after the last part.
func (l *Map) Held(i int) (list []driver.Held, more bool) {
	table := l.table
	var dirs []driver.DirAttrs // of all in list: the caller keeps what it gets
	if i >= len(table.slots) {
		return nil, false
	}
	list = make([]driver.Held, 0, min(len(table.slots[i]), int(table.linked)))
	for j := range table.slots[i] {
		e := &table.slots[i][j]
		if e.state != slotLive {
			continue
		}
		a := table.attrs(e)
		first := len(dirs)
		dirs = append(dirs, a.Dirs...)
		a.Dirs = dirs[first:len(dirs):len(dirs)]
		list = append(list, driver.Held{
			Key:   format.ParsePath(table.path(e)),
			Size:  e.size,
			Sum:   block.Checksum{Sum: e.sum, Valid: true},
			Attrs: a,
		})
	}
	return list, true
}
