package fs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Hooks carries the callbacks by which an engine, which is opened first, reaches
// the mount, which is opened later. The zero value is ready; before Mount the
// callbacks do nothing.
type Hooks struct{ files atomic.Pointer[files] }

// Invalidate is for state.Options.Invalidate.
func (h *Hooks) Invalidate(_ state.Process, parent, id index.ID, name string) {
	if f := h.files.Load(); f != nil {
		f.forget(parent, id, name)
	}
}

// Dropped is for state.Options.Dropped.
func (h *Hooks) Dropped(blob driver.BlobID) {
	if f := h.files.Load(); f != nil && f.backings != nil {
		f.backings.drop(blob)
	}
}

// Alive is for state.Options.Alive.
func (h *Hooks) Alive(p state.Process) bool {
	f := h.files.Load()
	return f == nil || f.procs.alive(p.PID)
}

// maxMounts is how many mounts an owner serves at most: a verdict packs the number of the mount
// and a thread id in 32 bits.
const maxMounts = 1<<10 - 1

// ErrTooManyMounts reports a mount beyond the 1,023 that an owner serves.
var ErrTooManyMounts = errors.New("too many mounts")

// Mounts carries the callbacks of an engine to all mounts that Attach made on it, as Hooks does
// to one. The zero value is ready. Without mounts the callbacks do nothing.
type Mounts struct {
	files [maxMounts + 1]atomic.Pointer[files] // by number; 0 stays empty
	all   atomic.Pointer[[]*files]             // the same as an immutable list

	mu struct {
		sync.Mutex // held by writers of the above
		last       uint32
	}
}

// Invalidate is for state.Options.Invalidate, with Options.Kernels. It does not tell the kernel
// of the process that caused the change. A notice would make that kernel look the name up
// again, and would take the lock on the directory that its clients need next.
func (m *Mounts) Invalidate(by state.Process, parent, id index.ID, name string) {
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

// Dropped is for state.Options.Dropped.
func (m *Mounts) Dropped(blob driver.BlobID) {
	for _, f := range m.list() {
		if f.backings != nil {
			f.backings.drop(blob)
		}
	}
}

// Alive is for state.Options.Alive. It reports false for a process of a mount that is gone.
func (m *Mounts) Alive(p state.Process) bool {
	if p.Kernel > maxMounts {
		return false
	}
	f := m.files[p.Kernel].Load()
	return f != nil && f.procs.alive(p.PID)
}

func (m *Mounts) list() []*files {
	if all := m.all.Load(); all != nil {
		return *all
	}
	return nil
}

// number gives f a number. It reuses a number as late as possible, because files that are being
// written remember their first writer by it.
func (m *Mounts) number(f *files) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range maxMounts {
		m.mu.last = m.mu.last%maxMounts + 1
		if m.files[m.mu.last].CompareAndSwap(nil, f) {
			f.mount, f.others = m.mu.last, m
			return nil
		}
	}
	return ErrTooManyMounts
}

// settle waits until the kernels of all mounts but f have been told what they have to forget by now, or until ctx ends: a
// client of one of them may hold a directory.
func (m *Mounts) settle(ctx context.Context, f *files) {
	for _, other := range m.list() {
		if other != f {
			other.kernel.Flush(ctx)
		}
	}
}

// add sends f the callbacks.
func (m *Mounts) add(f *files) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := append([]*files{f}, m.list()...)
	m.all.Store(&all)
}

// silence stops the callbacks to f, except questions about its threads.
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

// remove frees the number.
func (m *Mounts) remove(f *files) { m.files[f.mount].Store(nil) }
