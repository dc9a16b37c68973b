package mem

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
)

// leaseIDs is how many BlobIDs one write to kvfs-memory reserves.
const leaseIDs = 1 << 32

// lease gives out the BlobIDs of a store, each once in the life of the store. The number in
// kvfs-memory is always above every id given out. So a process that crashes only skips ids. Its
// methods may be called in parallel. The lock is held while kvfs-memory is written, which is memory
// too, once in leaseIDs calls. Nothing is locked under it.
type lease struct {
	// Constant after open.
	root  *os.File      // directory of kvfs-memory; stays open while take may be called
	dir   string        // its path
	first driver.BlobID // take returns ids from here

	next  atomic.Uint64 // next result of take
	limit atomic.Uint64 // as in kvfs-memory; INVARIANT: above every result of take
	mu    struct {
		sync.Mutex
		format format // as last written
	}
}

// open continues after the ids that f says were given out, and writes kvfs-memory.
func (l *lease) open(root *os.File, dir string, f format) error {
	l.root, l.dir, l.first = root, dir, driver.BlobID(max(f.next, 1))
	l.next.Store(uint64(l.first))
	l.limit.Store(uint64(l.first))
	l.mu.format = f
	return l.extend(uint64(l.first))
}

// take returns an id that was never given out. If it fails, it skips one.
func (l *lease) take() (driver.BlobID, error) {
	id := l.next.Add(1) - 1
	if id >= l.limit.Load() {
		if err := l.extend(id); err != nil {
			return 0, err
		}
	}
	return driver.BlobID(id), nil
}

// extend makes the limit exceed id.
func (l *lease) extend(id uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id < l.limit.Load() {
		return nil
	}
	f := l.mu.format
	f.next = id + leaseIDs
	path := filepath.Join(l.dir, formatName)
	fd, err := unix.Openat(int(l.root.Fd()), formatName, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b := f.encode()
	if n, err := unix.Pwrite(fd, b, 0); err != nil || n != len(b) {
		return &os.PathError{Op: "write", Path: path, Err: errors.Join(err, unix.Ftruncate(fd, 0))}
	}
	l.mu.format = f
	l.limit.Store(f.next)
	return nil
}
