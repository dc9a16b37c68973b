//go:build ofi && cgo

package fabric

import (
	"fmt"
	"hash"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// mapFile maps n bytes of f at off, which is a multiple of the page size.
func mapFile(f *os.File, off, n int64, prot int) ([]byte, error) {
	p, err := unix.MmapPtr(int(f.Fd()), off, nil, uintptr(n), prot, unix.MAP_SHARED)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return unsafe.Slice((*byte)(p), n), nil
}

func unmap(p []byte) error {
	return os.NewSyscallError("munmap", unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(p)), uintptr(len(p))))
}

// graveSize is how many addresses a graveyard holds.
const graveSize = 1024

// graveyard takes the mappings that a provider in software may still send from: it does not notice
// that the region of a message that has begun was closed. The files are unmapped, but their
// addresses keep empty memory for a while. So the provider meets neither a hole nor another file's
// bytes. Readers learn from the region's word that the bytes they got do not count.
type graveyard struct {
	mu     sync.Mutex
	graves [][]byte // oldest first
}

// bury unmaps p.
func (g *graveyard) bury(p []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(p)), uintptr(len(p)), unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	if err != nil {
		return unmap(p)
	}
	g.mu.Lock()
	g.graves = append(g.graves, p)
	var old []byte
	if len(g.graves) > graveSize {
		old, g.graves = g.graves[0], g.graves[1:]
	}
	g.mu.Unlock()
	if old == nil {
		return nil
	}
	return unmap(old)
}

// clear frees the addresses.
func (g *graveyard) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.graves {
		unmap(p)
	}
	g.graves = nil
}

// target is the part of a file that is the destination of a read.
type target struct {
	t      *Transport
	mapped []byte
	p      []byte   // of mapped, the requested bytes
	mems   []memory // by rail, if they must be registered
}

// newTarget makes room for n bytes in dst.
func newTarget(t *Transport, dst rdma.Dest, n int64, rails []*peerRail) (*target, error) {
	if err := reserve(dst.File, dst.Off, n); err != nil {
		return nil, fmt.Errorf("make room for the read: %w", err)
	}
	from := dst.Off &^ int64(os.Getpagesize()-1)
	mapped, err := mapFile(dst.File, from, dst.Off-from+n, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("map the destination of the read: %w", err)
	}
	d := &target{t: t, mapped: mapped, p: mapped[dst.Off-from:], mems: make([]memory, len(t.rails))}
	if !t.rails[0].info.local { // registering populates, too
		populate(mapped)
	}
	for _, pr := range rails {
		if !pr.rail.info.local {
			continue
		}
		if d.mems[pr.rail.index], err = pr.rail.domain.register(mapped, false, t.newKey(pr.rail)); err != nil {
			d.close()
			return nil, fmt.Errorf("%s: %w: %w", pr.rail.name, rdma.ErrUnavailable, whyNoMemory("register the destination of the read", err))
		}
		t.count.registered.Add(1)
	}
	return d, nil
}

// reserve allocates these bytes of f, so that touching them cannot fail.
func reserve(f *os.File, off, n int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, off, n)
	for err == unix.EINTR {
		err = unix.Fallocate(int(f.Fd()), 0, off, n)
	}
	if err != unix.EOPNOTSUPP {
		return os.NewSyscallError("fallocate", err)
	}
	info, err := f.Stat()
	if err != nil || info.Size() >= off+n {
		return err
	}
	return f.Truncate(off + n)
}

// close ends the registrations and unmaps. No read may be under way to it.
func (d *target) close() {
	for _, m := range d.mems {
		if err := m.close(); err != nil {
			d.t.logClose("destination", err)
		}
	}
	if err := unmap(d.mapped); err != nil {
		d.t.logClose("destination", err)
	}
}

// hash writes the read bytes to h. It fails if the file was made shorter meanwhile.
func (d *target) hash(h hash.Hash64) (err error) {
	if h == nil {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = faultOf(p)
		}
	}()
	h.Write(d.p)
	return nil
}

// faultOf makes an error of a panic by a bad address. It panics with any other.
func faultOf(p any) error {
	if f, ok := p.(interface {
		runtime.Error
		Addr() uintptr
	}); ok {
		return fmt.Errorf("the read bytes are gone: the file became shorter during the read: %w", f)
	}
	panic(p)
}
