package tcp

import (
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// regionKey is a random token. A peer that has it may read the region.
type regionKey [16]byte

// confirmGrace is how long Close of a region waits for the confirmation of readers to which
// everything was sent. Then it cuts them off too.
const confirmGrace = 50 * time.Millisecond

// region implements rdma.Region.
type region struct {
	t    *Transport
	key  regionKey
	file *os.File
	size int64

	mu struct {
		sync.Mutex
		closed bool
		// readers counts the unconfirmed reads per session. Of these, sending counts those still
		// being sent, 0 or 1.
		readers map[*session]*readerCount
		empty   chan struct{} // closed when closed is set and readers is empty
	}
}

type readerCount struct{ held, sending int }

func newRegion(t *Transport, file *os.File, size int64) (*region, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("tcp: register: %w", err)
	}
	if size < 0 || size > info.Size() {
		return nil, fmt.Errorf("tcp: register: %d bytes of a file of %d", size, info.Size())
	}
	r := &region{t: t, file: file, size: size}
	rand.Read(r.key[:])
	r.mu.readers = map[*session]*readerCount{}
	r.mu.empty = make(chan struct{})
	return r, nil
}

// Remote implements rdma.Region.
func (r *region) Remote() rdma.RemoteRegion {
	return rdma.RemoteRegion{Key: r.key[:], Size: r.size}
}

// enter begins a read by s; false if the region is closed.
func (r *region) enter(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return false
	}
	c := r.mu.readers[s]
	if c == nil {
		c = &readerCount{}
		r.mu.readers[s] = c
	}
	c.held++
	c.sending++
	return true
}

// sent ends the sending of a read.
func (r *region) sent(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.readers[s].sending--
}

// leave ends a read: the reader has confirmed it or is cut off.
func (r *region) leave(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.mu.readers[s]
	if c.held--; c.held > 0 {
		return
	}
	delete(r.mu.readers, s)
	if r.mu.closed && len(r.mu.readers) == 0 {
		close(r.mu.empty)
	}
}

// Close implements rdma.Region.
func (r *region) Close() error {
	r.t.mu.Lock()
	if r.t.mu.regions[r.key] == r {
		delete(r.t.mu.regions, r.key)
		r.t.counters.regions.Add(-1)
	}
	r.t.mu.Unlock()

	r.mu.Lock()
	if !r.mu.closed {
		r.mu.closed = true
		if len(r.mu.readers) == 0 {
			close(r.mu.empty)
		}
	}
	r.cutLocked(func(c *readerCount) bool { return c.sending > 0 })
	r.mu.Unlock()

	grace := time.NewTimer(confirmGrace)
	defer grace.Stop()
	select {
	case <-r.mu.empty:
		return nil
	case <-grace.C:
	}
	r.mu.Lock()
	r.cutLocked(func(*readerCount) bool { return true })
	r.mu.Unlock()
	<-r.mu.empty
	return nil
}

func (r *region) cutLocked(which func(*readerCount) bool) {
	for s, c := range r.mu.readers {
		if which(c) {
			s.cut()
		}
	}
}
