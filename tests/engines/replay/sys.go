package replay

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is a descriptor. Each method is one system call, repeated only if a
// signal interrupted it before it did anything; errors are errnos, or an error
// of package io if fewer bytes moved than were asked for.
type File int

func again(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Open is open(2). O_CLOEXEC is added.
func Open(path string, flags int, mode uint32) (File, error) {
	fd := -1
	err := again(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return File(fd), err
}

// Close is close(2).
func (f File) Close() error {
	err := unix.Close(int(f))
	if errors.Is(err, unix.EINTR) {
		return nil // the descriptor is gone whatever close says
	}
	return err
}

// Write writes all of p with one write(2).
func (f File) Write(p []byte) error {
	return whole(len(p), io.ErrShortWrite, func() (int, error) { return unix.Write(int(f), p) })
}

// Writev writes all parts with one writev(2).
func (f File) Writev(parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	return whole(n, io.ErrShortWrite, func() (int, error) { return unix.Writev(int(f), parts) })
}

// Pwrite writes all of p with one pwrite(2).
func (f File) Pwrite(p []byte, off int64) error {
	return whole(len(p), io.ErrShortWrite, func() (int, error) { return unix.Pwrite(int(f), p, off) })
}

// Pwritev writes all parts with one pwritev(2).
func (f File) Pwritev(off int64, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	return whole(n, io.ErrShortWrite, func() (int, error) { return unix.Pwritev(int(f), parts, off) })
}

// Read fills p with one read(2).
func (f File) Read(p []byte) error {
	return whole(len(p), io.ErrUnexpectedEOF, func() (int, error) { return unix.Read(int(f), p) })
}

// Pread fills p with one pread(2).
func (f File) Pread(p []byte, off int64) error {
	return whole(len(p), io.ErrUnexpectedEOF, func() (int, error) { return unix.Pread(int(f), p, off) })
}

// Preadv fills all parts with one preadv(2).
func (f File) Preadv(off int64, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	return whole(n, io.ErrUnexpectedEOF, func() (int, error) { return unix.Preadv(int(f), parts, off) })
}

func whole(want int, short error, call func() (int, error)) error {
	n := 0
	err := again(func() (err error) {
		n, err = call()
		return err
	})
	if err == nil && n != want {
		return short
	}
	return err
}

// Seek is lseek(2).
func (f File) Seek(off int64, whence int) (int64, error) { return unix.Seek(int(f), off, whence) }

// Size is fstat(2).
func (f File) Size() (int64, error) {
	var st unix.Stat_t
	err := again(func() error { return unix.Fstat(int(f), &st) })
	return st.Size, err
}

// Terminal is the ioctl that Python asks of every file it opens.
func (f File) Terminal() bool {
	_, err := unix.IoctlGetTermios(int(f), unix.TCGETS)
	return err == nil
}

// Dup is fcntl(F_DUPFD_CLOEXEC).
func (f File) Dup() (File, error) {
	fd, err := unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, 0)
	return File(fd), err
}

// Truncate is ftruncate(2).
func (f File) Truncate(n int64) error {
	return again(func() error { return unix.Ftruncate(int(f), n) })
}

// Fallocate is fallocate(2) from the start of the file.
func (f File) Fallocate(mode uint32, n int64) error {
	return again(func() error { return unix.Fallocate(int(f), mode, 0, n) })
}

// Map maps the first n bytes of the file; Unmap ends that.
func (f File) Map(n, prot, flags int) ([]byte, error) { return unix.Mmap(int(f), 0, n, prot, flags) }

// Unmap is munmap(2).
func Unmap(p []byte) error { return unix.Munmap(p) }

// Exists is access(2) with F_OK.
func Exists(path string) bool {
	return again(func() error { return unix.Faccessat(unix.AT_FDCWD, path, unix.F_OK, 0) }) == nil
}

// Stat is stat(2).
func Stat(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := again(func() error { return unix.Stat(path, &st) })
	return st, err
}

// Rename is rename(2).
func Rename(from, to string) error {
	return again(func() error { return unix.Rename(from, to) })
}

// Unlink is unlink(2).
func Unlink(path string) error {
	return again(func() error { return unix.Unlink(path) })
}

// MakeDirs makes a directory and those above it as C++ and Python do: it looks
// upwards for one that is there, and then makes the others downwards. Somebody
// else may make them at the same time.
func MakeDirs(dir string) error {
	var absent []string
	for ; ; dir = filepath.Dir(dir) {
		if _, err := Stat(dir); err == nil {
			break
		} else if !errors.Is(err, unix.ENOENT) {
			return err
		}
		absent = append(absent, dir)
	}
	for i := len(absent) - 1; i >= 0; i-- {
		err := again(func() error { return unix.Mkdir(absent[i], 0o777) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// Touch sets the time of access to now and leaves that of modification.
func Touch(path string) error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	return again(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, path, now, 0) })
}

// Scan lists the regular files of a directory by the types of its entries, as
// os.scandir does, without a look at each.
func Scan(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Buffer returns n bytes that begin at a page boundary, as O_DIRECT wants.
func Buffer(n int) []byte {
	b := make([]byte, n+pageBytes)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageBytes - 1)
	return b[skip:][:n:n]
}
