package fs

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// Towards the engine, a thread of a shared mount has the number of the mount and its own
// in one: numbers of threads are below 1<<22 (PID_MAX_LIMIT of include/linux/threads.h).
const (
	threadBits = 22
	threadMask = 1<<threadBits - 1
	maxMounts  = 1<<(32-threadBits) - 1
)

// ErrTooManyMounts: an owner serves 1,023 mounts at most.
var ErrTooManyMounts = errors.New("too many mounts")

// Mounts carries the callbacks of an engine to all the mounts that Attach has made on it, as
// Hooks does to one. The zero value is ready; while there are no mounts, the callbacks do
// nothing.
type Mounts struct {
	servers [maxMounts + 1]atomic.Pointer[Server] // by number; 0 is none's
	all     atomic.Pointer[[]*Server]             // the same as a list, which is never changed

	mu struct {
		sync.Mutex // of those who change the above
		last       uint32
	}
}

// Invalidate is for tiers.Options.Invalidate, with Options.Kernels.
func (m *Mounts) Invalidate(parent, id index.ID, name string) {
	for _, s := range m.list() {
		switch child := s.node(uint64(id)); {
		case parent == 0 && s.refs.knows(id):
			s.notices.add(notice{child: child})
		case parent != 0 && s.refs.knows(parent): // else its kernel has no name in that directory
			n := notice{parent: s.node(uint64(parent)), child: child, name: name}
			if !s.asking.hold(parent, n) {
				s.notices.add(n)
			}
		}
	}
}

// Dropped is for tiers.Options.Dropped.
func (m *Mounts) Dropped(blob tiers.BlobID) {
	for _, s := range m.list() {
		if s.backings != nil {
			s.backings.drop(blob)
		}
	}
}

// SameProcess is for tiers.Options.SameProcess: threads of two mounts are never of one
// process; those of one mount are compared in its own number space.
func (m *Mounts) SameProcess(a, b uint32) bool {
	if a == b {
		return true
	}
	if a>>threadBits != b>>threadBits {
		return false
	}
	s := m.servers[a>>threadBits].Load()
	return s != nil && s.procs.same(a&threadMask, b&threadMask)
}

func (m *Mounts) list() []*Server {
	if all := m.all.Load(); all != nil {
		return *all
	}
	return nil
}

// number gives s a number. One that was in use is given out again as late as possible,
// because files that are being written remember who began them.
func (m *Mounts) number(s *Server) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range maxMounts {
		m.mu.last = m.mu.last%maxMounts + 1
		if m.servers[m.mu.last].CompareAndSwap(nil, s) {
			s.mount = m.mu.last
			return nil
		}
	}
	return ErrTooManyMounts
}

// add has s get the callbacks.
func (m *Mounts) add(s *Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := append([]*Server{s}, m.list()...)
	m.all.Store(&all)
}

// silence has s get no callbacks any more, but for questions about its threads.
func (m *Mounts) silence(s *Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*Server
	for _, other := range m.list() {
		if other != s {
			all = append(all, other)
		}
	}
	m.all.Store(&all)
}

// remove takes the number back.
func (m *Mounts) remove(s *Server) { m.servers[s.mount].Store(nil) }
