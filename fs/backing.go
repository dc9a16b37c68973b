package fs

import (
	"container/list"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
)

// maxIdleBackings bounds the backing files that stay registered while no handle
// uses them. Each keeps one open file in the kernel, about 300 bytes; to register
// again costs two system calls at the next open, a third of a 64 KiB read.
const maxIdleBackings = 1 << 16

// registrar registers backing files with the kernel.
type registrar interface {
	Register(fd int) (id int32, errno syscall.Errno)
	Unregister(id int32) syscall.Errno
}

// backing is one primary file that the kernel may read and write by itself.
//
// States:
//   - refs > 0: in use
//   - refs == 0 and idle != nil: kept for the next open
//   - dropped and refs > 0: unregistered with its last handle
type backing struct {
	id      int32
	refs    int
	idle    *list.Element
	dropped bool
}

// backings is the table of registered files. The kernel allows one backing file per inode, so
// all opens of a blob share one registration.
type backings struct {
	reg  registrar
	open func(driver.BlobID) (*os.File, error)
	log  *zap.Logger

	first  int32       // the lowest number of our files
	lowest int32       // the lowest number of the files left to the next owner
	alone  atomic.Bool // the files of earlier owners are unregistered
	left   atomic.Bool // left to the next owner: only dropIdle unregisters from now on

	unknown chan struct{} // signals that a dropped blob was not registered here; an earlier owner may have registered it

	mu struct {
		sync.Mutex
		table map[driver.BlobID]*backing
		idle  list.List // of driver.BlobID, least recently used first
		heirs []int32   // files left to the next owner
	}
}

func newBackings(reg registrar, first int32, open func(driver.BlobID) (*os.File, error), log *zap.Logger) *backings {
	b := &backings{reg: reg, first: first, open: open, log: log, unknown: make(chan struct{}, 1)}
	b.mu.table = map[driver.BlobID]*backing{}
	return b
}

// acquire returns the backing id of a blob for one more handle, and registers the file if
// necessary. file is the open file if the caller has it, else nil.
func (b *backings) acquire(blob driver.BlobID, file *os.File) (int32, error) {
	b.mu.Lock()
	if e := b.mu.table[blob]; e != nil {
		b.useLocked(e)
		b.mu.Unlock()
		return e.id, nil
	}
	b.mu.Unlock()
	if file == nil {
		opened, err := b.open(blob)
		if err != nil {
			return 0, err
		}
		defer opened.Close()
		file = opened
	}
	id, errno := b.reg.Register(int(file.Fd()))
	if errno != 0 {
		return 0, os.NewSyscallError("register backing file", errno)
	}
	b.mu.Lock()
	e := b.mu.table[blob]
	surplus := e != nil // another open registered it first
	if !surplus {
		e = &backing{id: id}
		b.mu.table[blob] = e
	}
	b.useLocked(e)
	b.mu.Unlock()
	if surplus {
		b.unregister(id)
	}
	return e.id, nil
}

func (b *backings) useLocked(e *backing) {
	e.refs++
	if e.idle != nil {
		b.mu.idle.Remove(e.idle)
		e.idle = nil
	}
}

// release ends the use of a blob by one handle.
func (b *backings) release(blob driver.BlobID) {
	b.mu.Lock()
	e := b.mu.table[blob]
	if e == nil {
		b.mu.Unlock()
		return
	}
	var gone []int32
	if e.refs--; e.refs == 0 {
		if e.dropped {
			delete(b.mu.table, blob)
			gone = append(gone, e.id)
		} else {
			e.idle = b.mu.idle.PushBack(blob)
		}
	}
	for b.mu.idle.Len() > maxIdleBackings {
		old := b.mu.idle.Remove(b.mu.idle.Front()).(driver.BlobID)
		gone = append(gone, b.mu.table[old].id)
		delete(b.mu.table, old)
	}
	b.mu.Unlock()
	for _, id := range gone {
		b.unregister(id)
	}
}

// drop forgets a blob whose file was removed, so that the kernel frees its memory.
func (b *backings) drop(blob driver.BlobID) {
	b.mu.Lock()
	e := b.mu.table[blob]
	if e == nil {
		b.mu.Unlock()
		select {
		case b.unknown <- struct{}{}:
		default: // signalled already
		}
		return
	}
	if e.refs > 0 {
		e.dropped = true
		b.mu.Unlock()
		return
	}
	if e.idle != nil {
		b.mu.idle.Remove(e.idle)
	}
	delete(b.mu.table, blob)
	b.mu.Unlock()
	b.unregister(e.id)
}

func (b *backings) unregister(id int32) {
	if b.left.Load() {
		b.mu.Lock()
		b.mu.heirs = append(b.mu.heirs, id)
		b.mu.Unlock()
		return
	}
	if errno := b.reg.Unregister(id); errno != 0 && errno != syscall.EBADF {
		b.log.Warn("unregister backing file", zap.Error(errno))
	}
}

// len returns how many files are registered.
func (b *backings) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mu.table)
}
