package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// client is one thread's access to a file system: bare system calls on one page-aligned buffer,
// which stays mapped and warm over all passes.
//
// It calls RawSyscall. So the Go scheduler neither adds its own time to a call of a few
// microseconds nor takes the processor away during a long one. The methods do not allocate. One
// thread at a time uses a client.
type client struct {
	buf     []byte
	written time.Time // when create was about to close the file
}

func newClient(size int) (*client, error) {
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("client buffer: %w", err)
	}
	fillPattern(buf)
	return &client{buf: buf}, nil
}

// fillPattern fills buf with bytes like those of real blocks: they do not compress, and no two
// pages are equal. Every call writes the same bytes.
func fillPattern(buf []byte) { rand.NewChaCha8([32]byte{}).Read(buf) }

func (c *client) close() error { return unix.Munmap(c.buf) }

// read is a hot read as in an engine: open, one read of the block, close.
func (c *client) read(path *byte, size int) error {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd),
		uintptr(unsafe.Pointer(&c.buf[0])), uintptr(size), 0, 0, 0)
	if err := closeFd(fd); err != nil {
		return err
	}
	return transferred("pread", n, size, errno)
}

// create writes the block to a name that does not exist: open, one write, close.
func (c *client) create(path *byte, size int) error {
	fd, err := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd),
		uintptr(unsafe.Pointer(&c.buf[0])), uintptr(size))
	c.written = time.Now()
	if err := closeFd(fd); err != nil {
		return err
	}
	return transferred("write", n, size, errno)
}

// store writes the block as vLLM's file offloading does: a temporary name beside
// the final one, then a rename over it, whether it exists or not.
func (c *client) store(temporary, final *byte, size int) error {
	if err := c.create(temporary, size); err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_RENAMEAT2, atCwd,
		uintptr(unsafe.Pointer(temporary)), atCwd, uintptr(unsafe.Pointer(final)), 0, 0)
	return failed("rename", errno)
}

func (c *client) openClose(path *byte) error {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return closeFd(fd)
}

func (c *client) stat(path *byte, size int) error {
	var st unix.Stat_t
	_, _, errno := unix.RawSyscall6(unix.SYS_NEWFSTATAT, atCwd,
		uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&st)), 0, 0, 0)
	if err := failed("stat", errno); err != nil {
		return err
	}
	if st.Size != int64(size) {
		return fmt.Errorf("stat: size %d, want %d", st.Size, size)
	}
	return nil
}

// readDir counts the entries of a directory without "." and "..", in reads of 32 KiB as in glibc.
func (c *client) readDir(path *byte) (int, error) {
	fd, err := open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return 0, err
	}
	defer closeFd(fd)
	const dirBufferBytes = 32 << 10
	entries := -2
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_GETDENTS64, uintptr(fd),
			uintptr(unsafe.Pointer(&c.buf[0])), dirBufferBytes)
		if err := failed("getdents", errno); err != nil {
			return 0, err
		}
		if n == 0 {
			return entries, nil
		}
		// struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
		for rest := c.buf[:n]; len(rest) > 0; entries++ {
			rest = rest[binary.NativeEndian.Uint16(rest[16:]):]
		}
	}
}

// stamp marks the first and the last bytes of the buffer as block i of size
// bytes; verify checks them after a read.
func (c *client) stamp(i, size int) {
	mark := uint64(i)<<32 | uint64(size)
	binary.LittleEndian.PutUint64(c.buf, mark)
	binary.LittleEndian.PutUint64(c.buf[size-8:size], ^mark)
}

func (c *client) verify(i, size int) error { return checkMarks(c.buf[:size], i) }

// checkMarks checks the marks of stamp in a block.
func checkMarks(block []byte, i int) error {
	mark := uint64(i)<<32 | uint64(len(block))
	first, last := binary.LittleEndian.Uint64(block), binary.LittleEndian.Uint64(block[len(block)-8:])
	if first != mark || last != ^mark {
		return fmt.Errorf("wrong bytes: got %x %x, want %x %x", first, last, mark, ^mark)
	}
	return nil
}

// atCwd is AT_FDCWD (-100) as the register holds it; the paths are absolute.
const atCwd = ^uintptr(99)

func open(path *byte, flags int) (int, error) {
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, atCwd, uintptr(unsafe.Pointer(path)),
		uintptr(flags|unix.O_CLOEXEC), 0o644, 0, 0)
	return int(fd), failed("open", errno)
}

func closeFd(fd int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return failed("close", errno)
}

func failed(call string, errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", call, errno)
}

func transferred(call string, n uintptr, want int, errno unix.Errno) error {
	if errno == 0 && int(n) != want {
		return fmt.Errorf("%s: %d bytes, want %d", call, n, want)
	}
	return failed(call, errno)
}
