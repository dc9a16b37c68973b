package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// client is one thread's access to a file system: bare system calls on one page-aligned buffer, which stays mapped and
// warm over all passes.
//
// It calls RawSyscall. So the Go scheduler neither adds its own time to a call of a few microseconds nor takes the
// processor away during a long one. The methods do not allocate, and fail as must does. One thread at a time uses a
// client.
type client struct {
	buf     []byte
	written time.Time // when create was about to close the file
}

func newClient(size int) *client {
	c := &client{buf: get(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE))}
	fillPattern(c.buf)
	return c
}

// fillPattern fills buf with bytes like those of real blocks: they do not compress, and no two pages are equal. Every
// call writes the same bytes.
func fillPattern(buf []byte) { rand.NewChaCha8([32]byte{}).Read(buf) }

// read is a hot read as in an engine: open, one read of the block, close.
func (c *client) read(path *byte, size int) {
	fd := open(path, unix.O_RDONLY)
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&c.buf[0])), uintptr(size), 0, 0, 0)
	closeFd(fd)
	transferred("pread", n, size, errno)
}

// create writes the block to a name that does not exist: open, one write, close.
func (c *client) create(path *byte, size int) {
	fd := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&c.buf[0])), uintptr(size))
	c.written = time.Now()
	closeFd(fd)
	transferred("write", n, size, errno)
}

// store writes the block as vLLM's file offloading does: a temporary name beside the final one, then a rename over it,
// whether it exists or not.
func (c *client) store(temporary, final *byte, size int) {
	c.create(temporary, size)
	_, _, errno := unix.RawSyscall6(unix.SYS_RENAMEAT2, atCwd, uintptr(unsafe.Pointer(temporary)), atCwd, uintptr(unsafe.Pointer(final)), 0, 0)
	succeeded("rename", errno)
}

func (c *client) unlink(path *byte) {
	_, _, errno := unix.RawSyscall(unix.SYS_UNLINKAT, atCwd, uintptr(unsafe.Pointer(path)), 0)
	succeeded("unlink", errno)
}

func (c *client) stat(path *byte, size int) {
	var st unix.Stat_t
	_, _, errno := unix.RawSyscall6(unix.SYS_NEWFSTATAT, atCwd, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&st)), 0, 0, 0)
	succeeded("stat", errno)
	if st.Size != int64(size) {
		must(fmt.Errorf("stat: size %d, want %d", st.Size, size))
	}
}

// readDir counts the entries of a directory without "." and "..", in reads of 32 KiB as in glibc.
func (c *client) readDir(dir string) int {
	fd := open(get(unix.BytePtrFromString(dir)), unix.O_RDONLY|unix.O_DIRECTORY)
	defer closeFd(fd)
	for entries := -2; ; {
		n, _, errno := unix.RawSyscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&c.buf[0])), 32*kib)
		succeeded("getdents", errno)
		if n == 0 {
			return entries
		}
		// struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
		for rest := c.buf[:n]; len(rest) > 0; entries++ {
			rest = rest[binary.NativeEndian.Uint16(rest[16:]):]
		}
	}
}

// stamp marks the first and the last bytes of the buffer as block i of size bytes; checkMarks checks them after a read.
func (c *client) stamp(i, size int) {
	mark := uint64(i)<<32 | uint64(size)
	binary.LittleEndian.PutUint64(c.buf, mark)
	binary.LittleEndian.PutUint64(c.buf[size-8:size], ^mark)
}

func checkMarks(block []byte, i int) { wantMark(block, uint64(i)<<32|uint64(len(block))) }

// wantMark checks the first and the last bytes.
func wantMark(b []byte, mark uint64) {
	if first, last := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-8:]); first != mark || last != ^mark {
		must(fmt.Errorf("wrong bytes: got %x %x, want %x %x", first, last, mark, ^mark))
	}
}

const pageBytes = 4 * kib

// stampPages marks each page of block i, so that swapped, missing or foreign pages show. The rest of buf is the
// pattern.
func stampPages(buf []byte, i int) {
	for at := 0; at < len(buf); at += pageBytes {
		page, mark := buf[at:min(at+pageBytes, len(buf))], pageMark(i, at/pageBytes)
		binary.LittleEndian.PutUint64(page, mark)
		binary.LittleEndian.PutUint64(page[len(page)-8:], ^mark)
	}
}

func pageMark(i, page int) uint64 { return uint64(i)<<32 | uint64(page) }

// verifyPages compares all bytes of block i with the written ones.
func verifyPages(buf, pattern []byte, i int) {
	for at := 0; at < len(buf); at += pageBytes {
		end := min(at+pageBytes, len(buf))
		wantMark(buf[at:end], pageMark(i, at/pageBytes))
		if !bytes.Equal(buf[at+8:end-8], pattern[at+8:end-8]) {
			must(fmt.Errorf("wrong bytes between %d and %d", at+8, end-8))
		}
	}
}

// verifyFirst checks only the first page, which costs nothing.
func verifyFirst(block []byte, i int) { wantMark(block[:min(pageBytes, len(block))], pageMark(i, 0)) }

// atCwd is AT_FDCWD (-100) as the register holds it; the paths are absolute.
const atCwd = ^uintptr(99)

func open(path *byte, flags int) int {
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, atCwd, uintptr(unsafe.Pointer(path)), uintptr(flags|unix.O_CLOEXEC), 0o644, 0, 0)
	succeeded("open", errno)
	return int(fd)
}

func closeFd(fd int) {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	succeeded("close", errno)
}

func succeeded(call string, errno unix.Errno) {
	if errno != 0 {
		must(fmt.Errorf("%s: %w", call, errno))
	}
}

func transferred(call string, n uintptr, want int, errno unix.Errno) {
	succeeded(call, errno)
	if int(n) != want {
		must(fmt.Errorf("%s: %d bytes, want %d", call, n, want))
	}
}
