//go:build ofi && cgo

package fabric

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// fileID identifies a file, as long as the file exists. A mapped file exists.
type fileID struct{ dev, ino uint64 }

// entry is a file that is mapped and registered on all rails.
type entry struct {
	id      fileID
	size    int64
	pages   int64            // bytes of its pages
	unnamed bool             // the file has no name: it is no block, and no reader asks for it again
	changed syscall.Timespec // ctime of the file: if it differs, the pages may differ

	ready chan struct{} // closed when the next fields are set
	err   error
	mem   []byte
	mems  []memory
	gone  chan struct{} // closed when the file is unmapped again

	// Guarded by the cache's mu.
	refs     int
	detached bool          // cannot be found any more, and not kept after its last use
	idle     *list.Element // in cache.mu.idle
	since    time.Time     // when it became idle
}

// maxIdle bounds how many files are idle. Each takes as many mappings of the process as a long
// file, and the kernel's default allows 65530.
const maxIdle = 4096

// cache keeps recently used files registered. It also has the files in use: several regions of a
// file have one entry.
type cache struct {
	t     *Transport
	bytes int64                        // limit of the idle bytes
	age   time.Duration                // limit of the idle time
	open  func(*entry, *os.File) error // entry.open, except in tests

	mu struct {
		sync.Mutex
		closed  bool
		entries map[fileID]*entry
		idle    list.List // longest idle first
		cached  int64     // bytes of idle
		closing map[*entry]struct{}
		timer   *time.Timer // runs expire; nil: nothing is idle
	}
}

func newCache(t *Transport) *cache {
	c := &cache{t: t, bytes: t.opts.CacheBytes, age: t.opts.CacheTime}
	c.open = func(e *entry, f *os.File) error { return e.open(t, f) }
	c.mu.entries = map[fileID]*entry{}
	c.mu.closing = map[*entry]struct{}{}
	return c
}

// acquire registers the first size bytes of f; size is above 0. The caller must call release unless
// acquire fails.
func (c *cache) acquire(f *os.File, size int64) (*entry, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || size < 0 || size > info.Size() {
		return nil, fmt.Errorf("%d bytes of a file of %d", size, info.Size())
	}
	id := fileID{uint64(st.Dev), st.Ino}

	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return nil, rdma.ErrClosed
	}
	e := c.mu.entries[id]
	if e != nil && e.size == size && e.changed == st.Ctim {
		c.useLocked(e)
		c.mu.Unlock()
		c.t.count.hits.Add(1)
	} else {
		var old []*entry
		if e != nil {
			old = c.detachLocked(e)
		}
		e = &entry{
			id: id, size: size, pages: wholePages(size), unnamed: st.Nlink == 0 && !c.t.opts.KeepUnnamed, changed: st.Ctim,
			refs: 1, ready: make(chan struct{}), gone: make(chan struct{}),
		}
		c.mu.entries[id] = e
		c.mu.Unlock()
		c.end(old)
		e.err = c.open(e, f)
		if errors.Is(e.err, syscall.ENOMEM) || errors.Is(e.err, syscall.EAGAIN) {
			c.dropIdle() // frees mappings, locked memory, or room in the card
			e.err = c.open(e, f)
		}
		close(e.ready)
	}
	<-e.ready
	if e.err != nil {
		c.mu.Lock()
		old := c.detachLocked(e)
		c.mu.Unlock()
		c.end(old)
		c.release(e)
		return nil, e.err
	}
	return e, nil
}

// wholePages returns the bytes of the pages that n bytes take.
func wholePages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) &^ (page - 1)
}

// open maps and registers.
func (e *entry) open(t *Transport, f *os.File) error {
	var err error
	if e.mem, err = mapFile(f, 0, e.size, unix.PROT_READ); err != nil {
		return err
	}
	for _, r := range t.rails {
		var m memory
		if m, err = t.registerOn(r, e.mem); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", r.name, whyNoMemory("register", err)), e.undo(t))
		}
		e.mems = append(e.mems, m)
	}
	t.count.pinned.Add(e.pages)
	return nil
}

// undo is close for an entry that was opened in part.
func (e *entry) undo(t *Transport) error {
	var errs []error
	for _, m := range e.mems {
		errs = append(errs, m.close())
	}
	if e.mem != nil {
		errs = append(errs, t.unmapRegion(e.mem))
	}
	e.mem, e.mems = nil, nil
	return errors.Join(errs...)
}

// useLocked adds a user to e.
func (c *cache) useLocked(e *entry) {
	e.refs++
	c.unidleLocked(e)
}

func (c *cache) unidleLocked(e *entry) {
	if e.idle != nil {
		c.mu.idle.Remove(e.idle)
		c.mu.cached -= e.pages
		e.idle = nil
	}
}

// detachLocked removes e from the entries that can be found. It returns e if it has no user: the
// caller must call end after unlocking.
func (c *cache) detachLocked(e *entry) []*entry {
	if c.mu.entries[e.id] == e {
		delete(c.mu.entries, e.id)
	}
	if e.detached {
		return nil
	}
	e.detached = true
	c.unidleLocked(e)
	if e.refs > 0 {
		return nil
	}
	c.mu.closing[e] = struct{}{}
	return []*entry{e}
}

// end closes entries that detachLocked returned.
func (c *cache) end(entries []*entry) {
	for _, e := range entries {
		if e.mem != nil {
			c.t.count.pinned.Add(-e.pages)
		}
		if err := e.undo(c.t); err != nil {
			c.t.logClose("region", err)
		}
		close(e.gone)
		c.mu.Lock()
		delete(c.mu.closing, e)
		c.mu.Unlock()
	}
}

// release ends a use of e. Unless e is kept, it is closed before release returns.
func (c *cache) release(e *entry) {
	var old []*entry
	c.mu.Lock()
	e.refs--
	switch {
	case e.refs > 0:
	case e.detached:
		c.mu.closing[e] = struct{}{}
		old = append(old, e)
	case c.mu.closed || e.unnamed || e.pages > c.bytes:
		old = c.detachLocked(e)
	default:
		e.since = time.Now()
		e.idle = c.mu.idle.PushBack(e)
		c.mu.cached += e.pages
		for c.mu.cached > c.bytes || c.mu.idle.Len() > maxIdle {
			old = append(old, c.detachLocked(c.mu.idle.Front().Value.(*entry))...)
		}
		c.armLocked()
	}
	c.mu.Unlock()
	c.end(old)
}

// dropIdle closes all entries without a user.
func (c *cache) dropIdle() {
	var old []*entry
	c.mu.Lock()
	for c.mu.idle.Len() > 0 {
		old = append(old, c.detachLocked(c.mu.idle.Front().Value.(*entry))...)
	}
	c.mu.Unlock()
	c.end(old)
}

// armLocked makes expire run when the oldest idle entry is old enough.
func (c *cache) armLocked() {
	if c.mu.timer != nil || c.mu.idle.Len() == 0 || c.mu.closed {
		return
	}
	oldest := c.mu.idle.Front().Value.(*entry)
	c.mu.timer = time.AfterFunc(time.Until(oldest.since.Add(c.age)), c.expire)
}

// expire closes entries that have been idle for long. It runs on the timer's goroutine. close waits
// for the entries that expire closes.
func (c *cache) expire() {
	var old []*entry
	c.mu.Lock()
	c.mu.timer = nil
	for c.mu.idle.Len() > 0 {
		e := c.mu.idle.Front().Value.(*entry)
		if time.Since(e.since) < c.age {
			break
		}
		old = append(old, c.detachLocked(e)...)
	}
	c.armLocked()
	c.mu.Unlock()
	c.end(old)
}

// forget closes the idle entries of a file. Entries in use are not kept after their present users.
func (c *cache) forget(id fileID) {
	var old []*entry
	var wait []chan struct{}
	c.mu.Lock()
	if e := c.mu.entries[id]; e != nil {
		old = c.detachLocked(e)
	}
	for e := range c.mu.closing {
		if e.id == id {
			wait = append(wait, e.gone)
		}
	}
	c.mu.Unlock()
	c.end(old)
	for _, gone := range wait {
		<-gone
	}
}

// close closes all entries without a user, and waits for goroutines that are closing one.
func (c *cache) close() {
	var old []*entry
	var wait []chan struct{}
	c.mu.Lock()
	c.mu.closed = true
	if c.mu.timer != nil {
		c.mu.timer.Stop()
	}
	for _, e := range c.mu.entries {
		old = append(old, c.detachLocked(e)...)
	}
	for e := range c.mu.closing {
		wait = append(wait, e.gone)
	}
	c.mu.Unlock()
	c.end(old)
	for _, gone := range wait {
		<-gone
	}
}

// cachedBytes returns how many registered bytes have no user.
func (c *cache) cachedBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.cached
}
