package directio

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// Mapping is a file mapped into memory for reading. A device writes from it, so a tmpfs file needs no copy.
type Mapping struct {
	mem  []byte // as mapped: Munmap takes nothing else
	once sync.Once
}

// Map maps the first AlignUp(size) bytes of f, shared. Beyond the last page of the file an Engine gets EFAULT, and the
// program's own access ends in SIGBUS; see Guard.
//
// It fails with os.ErrInvalid if size is not positive, and with the errno of mmap. f may be closed
// before the Mapping.
func Map(f *os.File, size int64) (*Mapping, error) {
	if size <= 0 || size > 1<<62 {
		return nil, fmt.Errorf("directio: map %d bytes of %s: %w", size, f.Name(), os.ErrInvalid)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(AlignUp(size)), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("directio: map %d bytes of %s: %w", size, f.Name(), os.NewSyscallError("mmap", err))
	}
	return &Mapping{mem: mem}, nil
}

// Bytes returns the memory. Its length is a multiple of Alignment. It must not be used after Close.
func (m *Mapping) Bytes() []byte { return m.mem }

// Close unmaps the memory. The kernel must be done with it. A second call does nothing.
func (m *Mapping) Close() error {
	var err error
	m.once.Do(func() {
		mem := m.mem
		m.mem = nil
		err = os.NewSyscallError("munmap", unix.Munmap(mem))
	})
	return err
}

// FaultError is the error of Guard for an access to memory that is not there. Mostly the mapped
// file was truncated.
type FaultError struct {
	Addr uintptr // 0 if the runtime does not say
}

// Error names the address.
func (e *FaultError) Error() string {
	return fmt.Sprintf("directio: memory at %#x is gone: mapped file truncated?", e.Addr)
}

// Guard calls fn. It returns a *FaultError if fn, on this goroutine, touches mapped memory without
// a page behind it. Without Guard that would end the process. Other panics pass through. fn must
// hold no lock that it unlocks without defer.
func Guard(fn func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case faulter:
			err = &FaultError{Addr: r.Addr()}
		default:
			panic(r)
		}
	}()
	fn()
	return nil
}

// faulter is the type of the runtime's panic at a memory fault, and only there.
type faulter interface {
	error
	Addr() uintptr
}
