package directio

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotDirect says that a file system refuses O_DIRECT, or that it accepted O_DIRECT and opened
// the file without.
var ErrNotDirect = errors.New("no direct I/O")

// File is a file that is open with O_DIRECT. Methods may be called in parallel.
type File struct {
	f  *os.File
	fd int
}

// OpenFile is os.OpenFile with O_DIRECT added. If the file system has no direct I/O, it fails with
// ErrNotDirect, and with the errno if there is one. It checks the flags of the open file. That
// check is no proof: see Probe.
func OpenFile(path string, flag int, perm os.FileMode) (*File, error) {
	f, err := os.OpenFile(path, flag|unix.O_DIRECT, perm)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("directio: file system refuses O_DIRECT: %w: %w", ErrNotDirect, err)
	}
	if err != nil {
		return nil, err
	}
	file := &File{f: f, fd: int(f.Fd())}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_DIRECT == 0 {
		err = ErrNotDirect
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("directio: %s: opened with O_DIRECT, flags %#x: %w", path, flags, err), f.Close())
	}
	return file, nil
}

// Fd returns the descriptor, valid until Close.
func (f *File) Fd() int { return f.fd }

// OS returns the os.File below f, for truncating, allocating and locking. f still owns it.
func (f *File) OS() *os.File { return f.f }

// Name returns the path given to OpenFile.
func (f *File) Name() string { return f.f.Name() }

// Close closes the file. No Engine may still have an op on it: the kernel gives the descriptor to
// the next file that is opened.
func (f *File) Close() error { return f.f.Close() }
