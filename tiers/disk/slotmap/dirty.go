package slotmap

import (
	"cmp"
	"slices"
	"time"
)

// headerRetry is how long a header that the device refused waits before it is first tried again. The
// second value is the longest wait.
const headerRetry, maxHeaderRetry = time.Second, time.Minute

// headerList holds the slots whose headers are to be written. The caller serialises calls.
type headerList struct {
	todo    []SlotID // the oldest first
	refused []SlotID // refused by the device, until retry
	cause   error    // why the last one was refused
	tried   time.Time
	wait    time.Duration // from the last try to the next
}

// add adds a slot that is not in the list.
func (l *headerList) add(id SlotID) { l.todo = append(l.todo, id) }

// take takes up to n slots, the oldest, out of the list. The result is valid until the next add.
func (l *headerList) take(n int) []SlotID {
	n = min(n, len(l.todo))
	list := l.todo[:n]
	if l.todo = l.todo[n:]; len(l.todo) == 0 {
		l.todo = nil
	}
	return list
}

// refuse puts a slot back. The device refused its header with err.
func (l *headerList) refuse(id SlotID, err error) {
	l.refused = append(l.refused, id)
	l.cause = err
}

// refusal returns why headers wait for Retry. It is nil if none waits.
func (l *headerList) refusal() error {
	if len(l.refused) == 0 {
		return nil
	}
	return l.cause
}

// retry returns the refused slots to the list of those to write, if their time has come or force is
// set. The first wait is headerRetry. Each wait is twice the last, up to maxHeaderRetry.
func (l *headerList) retry(now time.Time, force bool) {
	if len(l.refused) == 0 {
		l.wait = 0
		return
	}
	if !force && now.Sub(l.tried) < l.wait {
		return
	}
	l.todo = append(l.todo, l.refused...)
	l.refused = nil
	l.tried, l.wait = now, min(max(2*l.wait, headerRetry), maxHeaderRetry)
}

// Unwritten returns how many headers are to be written, without the refused ones.
func (sp *Space) Unwritten() int { return len(sp.headers.todo) }

// Refusal returns why headers wait for Retry. It is nil if none waits.
func (sp *Space) Refusal() error { return sp.headers.refusal() }

// Retry makes the refused headers ones to write, if their time has come or force is set.
func (sp *Space) Retry(now time.Time, force bool) { sp.headers.retry(now, force) }

// DirtyHeader is a header to write. Its slot may have been freed since.
type DirtyHeader struct {
	ID         SlotID
	slab, slot uint32
}

// TakeDirty returns up to n of the headers of a space that are to be written, the oldest. The caller
// must pass each to EncodeDirty.
func (l *Map) TakeDirty(sp *Space, n int) []DirtyHeader {
	ids := sp.headers.take(n)
	list := make([]DirtyHeader, len(ids))
	for i, id := range ids {
		e := l.table.at(id)
		list[i] = DirtyHeader{id, e.slab, e.slot}
	}
	return list
}

// SortDirty sorts headers by their places. It needs no lock.
func SortDirty(list []DirtyHeader) {
	slices.SortFunc(list, func(a, b DirtyHeader) int {
		return cmp.Or(cmp.Compare(a.slab, b.slab), cmp.Compare(a.slot, b.slot))
	})
}

// EncodeDirty makes the page of a header as its slot is now, and returns where it goes. The caller
// must pass the result of the write to WroteDirty. ok is false if there is nothing to write.
func (l *Map) EncodeDirty(h DirtyHeader, page []byte) (at Place, ok bool) {
	e := l.table.at(h.ID)
	if e.flags&flagDirty == 0 || e.slab != h.slab || e.slot != h.slot {
		return Place{}, false // freed, and perhaps reused: then it is in the list again
	}
	e.flags &^= flagDirty
	at = l.Place(h.ID)
	clear(page)
	if e.state == slotLive {
		hdr := l.table.header(e, at.Slab.Header.Epoch)
		if err := hdr.Encode(page); err != nil {
			panic("slot map: key checked by Store: " + err.Error())
		}
	}
	return at, true
}

// WroteDirty records the result of writing a header. It reports whether the device refused this
// header for the first time. A slot that was given up may be free then.
func (l *Map) WroteDirty(id SlotID, err error) (refused bool) {
	e := l.table.at(id)
	if err != nil {
		refused = e.flags&flagRefused == 0
		e.flags |= flagRefused
		if e.flags&flagDirty == 0 { // else it changed meanwhile and is in the list again
			e.flags |= flagDirty
			l.slabs[e.slab].Space.headers.refuse(id, err)
		}
		return refused
	}
	e.flags &^= flagRefused
	if e.flags&flagDirty == 0 && e.state == slotGone {
		e.flags |= flagZeroed
		l.free(id)
	}
	return false
}

// MarkDirty makes the header of a slot one to write.
func (l *Map) MarkDirty(id SlotID) {
	e := l.table.at(id)
	e.flags &^= flagZeroed
	if e.flags&flagDirty != 0 {
		return
	}
	e.flags |= flagDirty
	sp := l.slabs[e.slab].Space
	sp.headers.add(id)
	sp.wake()
}
