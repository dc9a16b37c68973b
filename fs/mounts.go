package fs

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// Hooks carries the callbacks by which an engine, which is opened first, reaches
// the mount, which is opened later. The zero value is ready; before Mount the
// callbacks do nothing.
type Hooks struct{ files atomic.Pointer[files] }

// Invalidate is for tiers.Options.Invalidate.
func (h *Hooks) Invalidate(_ tiers.Process, parent, id index.ID, name string) {
	if f := h.files.Load(); f != nil {
		f.forget(parent, id, name)
	}
}

// Dropped is for tiers.Options.Dropped.
func (h *Hooks) Dropped(blob tiers.BlobID) {
	if f := h.files.Load(); f != nil && f.backings != nil {
		f.backings.drop(blob)
	}
}

// Alive is for tiers.Options.Alive.
func (h *Hooks) Alive(p tiers.Process) bool {
	f := h.files.Load()
	return f == nil || f.procs.alive(p.PID)
}

// Closed is for tiers.Options.Closed.
func (h *Hooks) Closed(p tiers.Process, id index.ID) bool {
	f := h.files.Load()
	return f != nil && f.procs.closed(p.PID, f.epoch.Ino(uint64(id)))
}

// maxMounts is how many mounts an owner serves at most: verdicts name a thread and the number of its
// mount in 32 bits.
const maxMounts = 1<<10 - 1

// ErrTooManyMounts: an owner serves 1,023 mounts at most.
var ErrTooManyMounts = errors.New("too many mounts")

// Mounts carries the callbacks of an engine to all the mounts that Attach has made on it, as
// Hooks does to one. The zero value is ready; while there are no mounts, the callbacks do
// nothing.
type Mounts struct {
	files [maxMounts + 1]atomic.Pointer[files] // by number; 0 is none's
	all   atomic.Pointer[[]*files]             // the same as a list, which is never changed

	mu struct {
		sync.Mutex // of those who change the above
		last       uint32
	}
}

// Invalidate is for tiers.Options.Invalidate, with Options.Kernels. The kernel of the process that has
// asked is not told: a notice would have it forget the name, which it then has to look up again, and takes
// the lock on the directory, which its clients need next.
func (m *Mounts) Invalidate(by tiers.Process, parent, id index.ID, name string) {
	for _, f := range m.list() {
		about := parent // a kernel that does not know the directory has no name in it
		if parent == 0 {
			about = id
		}
		if f.mount != by.Kernel && f.refs.knows(about) {
			f.forget(parent, id, name)
		}
	}
}

// Dropped is for tiers.Options.Dropped.
func (m *Mounts) Dropped(blob tiers.BlobID) {
	for _, f := range m.list() {
		if f.backings != nil {
			f.backings.drop(blob)
		}
	}
}

// Alive is for tiers.Options.Alive. Of a mount that is gone no process is.
func (m *Mounts) Alive(p tiers.Process) bool {
	if p.Kernel > maxMounts {
		return false
	}
	f := m.files[p.Kernel].Load()
	return f != nil && f.procs.alive(p.PID)
}

// Closed is for tiers.Options.Closed. Of a mount that is gone all processes have.
func (m *Mounts) Closed(p tiers.Process, id index.ID) bool {
	if p.Kernel > maxMounts {
		return true
	}
	f := m.files[p.Kernel].Load()
	return f == nil || f.procs.closed(p.PID, f.epoch.Ino(uint64(id)))
}

func (m *Mounts) list() []*files {
	if all := m.all.Load(); all != nil {
		return *all
	}
	return nil
}

// number gives f a number. One that was in use is given out again as late as possible,
// because files that are being written remember who began them.
func (m *Mounts) number(f *files) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range maxMounts {
		m.mu.last = m.mu.last%maxMounts + 1
		if m.files[m.mu.last].CompareAndSwap(nil, f) {
			f.mount = m.mu.last
			return nil
		}
	}
	return ErrTooManyMounts
}

// add has f get the callbacks.
func (m *Mounts) add(f *files) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := append([]*files{f}, m.list()...)
	m.all.Store(&all)
}

// silence has f get no callbacks any more, but for questions about its threads.
func (m *Mounts) silence(f *files) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*files
	for _, other := range m.list() {
		if other != f {
			all = append(all, other)
		}
	}
	m.all.Store(&all)
}

// remove takes the number back.
func (m *Mounts) remove(f *files) { m.files[f.mount].Store(nil) }
