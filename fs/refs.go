package fs

import (
	"sync"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// refs counts what the kernel of one mount holds of an engine with several kernels. Detach
// gives it back if the kernel itself no longer does.
type refs struct {
	// later is held for reading while a goroutine outside serve answers an OPEN. ended forbids
	// further such answers.
	later sync.RWMutex
	ended bool

	mu struct {
		sync.Mutex // leaf
		names      map[index.ID]uint64
		reads      map[readRef]uint32
	}
}

// readRef is the blob that a handle without an object refers to.
type readRef struct {
	id   index.ID
	blob driver.BlobID
}

func newRefs() *refs {
	r := &refs{}
	r.mu.names, r.mu.reads = map[index.ID]uint64{}, map[readRef]uint32{}
	return r
}

// looked counts a look-up.
func (r *refs) looked(id index.ID) {
	r.mu.Lock()
	r.mu.names[id]++
	r.mu.Unlock()
}

// forgot takes n look-ups back and returns how many of them had been counted.
func (r *refs) forgot(id index.ID, n uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.mu.names[id]
	if have <= n {
		delete(r.mu.names, id)
		return have
	}
	r.mu.names[id] = have - n
	return n
}

// knows reports whether the kernel may have cached an entry or the names in it.
func (r *refs) knows(id index.ID) bool {
	if id == index.Root {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.names[id] > 0
}

// opened counts a handle without an object.
func (r *refs) opened(id index.ID, blob driver.BlobID) {
	r.mu.Lock()
	r.mu.reads[readRef{id, blob}]++
	r.mu.Unlock()
}

// closed takes opened back. It reports false if nothing was counted.
func (r *refs) closed(id index.ID, blob driver.BlobID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := readRef{id, blob}
	switch n := r.mu.reads[ref]; n {
	case 0:
		return false
	case 1:
		delete(r.mu.reads, ref)
	default:
		r.mu.reads[ref] = n - 1
	}
	return true
}

// end waits for the late answers to OPENs that are under way, and forbids further ones.
func (r *refs) end() {
	r.later.Lock()
	r.ended = true
	r.later.Unlock()
}

// takeAll returns and forgets all counts.
func (r *refs) takeAll() (names map[index.ID]uint64, reads map[readRef]uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names, reads = r.mu.names, r.mu.reads
	r.mu.names, r.mu.reads = map[index.ID]uint64{}, map[readRef]uint32{}
	return names, reads
}

// giveBack gives the engine back all that the kernel holds. It does not commit what was being
// written, because the file may not be whole. Call it after the last answer.
func (f *files) giveBack() {
	if f.backings != nil {
		f.backings.dropIdle() // from here on, handles end that clients still have open
	}
	if f.refs != nil {
		f.refs.end()
	}
	for _, h := range f.handles.takeAll() {
		f.closeHandle(h, true)
	}
	if f.refs == nil {
		return // the engine ends with the mount
	}
	names, reads := f.refs.takeAll()
	for ref, n := range reads {
		for range n {
			f.engine.CloseRead(ref.id)
		}
	}
	for id, n := range names {
		f.engine.Forget(id, n)
	}
}
