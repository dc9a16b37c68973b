package directio

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// Mapping is a file mapped into memory, to be filled from a device or written to
// one: a tmpfs file then needs no copy.
type Mapping struct {
	mem  []byte // as mapped: Munmap takes nothing else
	once sync.Once
}

// Map maps the first AlignUp(size) bytes of f, shared, for reading or for both. Of
// what lies beyond the last page of the file, the kernel answers EFAULT to an
// Engine and a program's own access ends in SIGBUS, see Guard. A full tmpfs answers
// alike, and not ENOSPC: who means to write allocates the file first.
//
// It fails with os.ErrInvalid if size is not positive, and with the errno of mmap.
// f may be closed before the Mapping.
func Map(f *os.File, size int64, write bool) (*Mapping, error) {
	if size <= 0 || size > 1<<62 {
		return nil, fmt.Errorf("directio: map %d bytes of %s: %w", size, f.Name(), os.ErrInvalid)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(AlignUp(size)), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("directio: map %d bytes of %s: %w", size, f.Name(), os.NewSyscallError("mmap", err))
	}
	return &Mapping{mem: mem}, nil
}

// Bytes returns the memory, a multiple of Alignment long. It must not be touched
// after Close.
func (m *Mapping) Bytes() []byte { return m.mem }

// Close unmaps the memory; the kernel must be done with it. A second call does
// nothing.
func (m *Mapping) Close() error {
	var err error
	m.once.Do(func() {
		mem := m.mem
		m.mem = nil
		err = os.NewSyscallError("munmap", unix.Munmap(mem))
	})
	return err
}

// FaultError is what Guard makes of an access to memory that is not there, mostly
// because the mapped file was truncated.
type FaultError struct {
	Addr uintptr // 0 if the runtime does not say
}

// Error names the address.
func (e *FaultError) Error() string {
	return fmt.Sprintf("directio: memory at %#x is gone: mapped file truncated?", e.Addr)
}

// Guard calls fn and returns a *FaultError if fn, on this goroutine, touches mapped
// memory that has no page behind it, which would end the process otherwise.
// Other panics pass. fn must hold no lock that it unlocks without defer.
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

// faulter is what the runtime panics with at a memory fault, and only there.
type faulter interface {
	error
	Addr() uintptr
}
