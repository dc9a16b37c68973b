package mount

import (
	"bufio"
	"encoding/gob"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process of the differential test: it reads lists of operations from its
// standard input, does each by system calls, and writes what came of it.

const differHelper = "differ"

type differChild struct {
	root string
	fds  [differSlots]int // -1: free
	maps [differSlots][]byte
}

// differMain is the helper.
func differMain([]string) int {
	unix.Umask(0o022)
	debug.SetPanicOnFault(true)
	enc, dec := gob.NewEncoder(os.Stdout), gob.NewDecoder(bufio.NewReader(os.Stdin))
	var c differChild
	for i := range c.fds {
		c.fds[i] = -1
	}
	for {
		var ops []differOp
		if dec.Decode(&ops) != nil {
			return 0
		}
		for _, op := range ops {
			if err := enc.Encode(c.do(op)); err != nil {
				return 1
			}
		}
	}
}

// do does op, again as long as it is interrupted.
func (c *differChild) do(op differOp) differResult {
	for {
		var r differResult
		err := c.call(op, &r)
		errno, ok := errors.AsType[syscall.Errno](err)
		if err != nil && !ok {
			errno = unix.EPROTO
		}
		if errno != unix.EINTR {
			r.Errno = errno
			return r
		}
	}
}

func (c *differChild) path(name string) string { return filepath.Join(c.root, name) }

func (c *differChild) call(op differOp, r *differResult) error {
	switch op.Do {
	case "root": // a new sequence
		c.reset()
		c.root = op.A
	case "stat":
		return c.stat(op.A, r)
	case "readfile":
		return c.readFile(op.A, r)
	case "list":
		return c.list(op.A, r)
	case "truncate":
		return c.truncate(op)
	case "chmod":
		return unix.Chmod(c.path(op.A), op.Mode)
	case "utimens":
		at := []unix.Timespec{{Sec: op.N}, {Sec: op.N}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, c.path(op.A), at, 0)
	case "rename":
		return unix.Rename(c.path(op.A), c.path(op.B))
	case "unlink":
		return unix.Unlink(c.path(op.A))
	case "mkdir":
		return unix.Mkdir(c.path(op.A), op.Mode)
	case "rmdir":
		return unix.Rmdir(c.path(op.A))
	case "open":
		return c.open(op)
	case "mread":
		return c.mread(op, r)
	case "munmap":
		return c.munmap(op.T)
	default:
		return c.callFD(op, c.fds[op.S], r)
	}
	return nil
}

func (c *differChild) callFD(op differOp, fd int, r *differResult) (err error) {
	if fd < 0 {
		return unix.EBADF
	}
	n := 0
	switch op.Do {
	case "close":
		return c.close(op.S)
	case "dup":
		return c.dup(op)
	case "fstat":
		return fstatDiffer(fd, r)
	case "samename":
		return c.sameName(fd, op.A, r)
	case "write":
		n, err = unix.Write(fd, op.data())
	case "pwrite":
		n, err = unix.Pwrite(fd, op.data(), op.Off)
	case "read":
		r.Data = make([]byte, op.N)
		n, err = unix.Read(fd, r.Data)
		r.Data = r.Data[:max(n, 0)]
	case "pread":
		r.Data = make([]byte, op.N)
		n, err = unix.Pread(fd, r.Data, op.Off)
		r.Data = r.Data[:max(n, 0)]
	case "lseek":
		r.N, err = unix.Seek(fd, op.Off, op.Flags)
		return err
	case "ftruncate":
		err = unix.Ftruncate(fd, op.N)
	case "fallocate":
		err = unix.Fallocate(fd, op.Mode, op.Off, op.N)
	case "nothing":
	case "fsync":
		err = unix.Fsync(fd)
	case "fdatasync":
		err = unix.Fdatasync(fd)
	case "fchmod":
		err = unix.Fchmod(fd, op.Mode)
	case "flock":
		err = unix.Flock(fd, op.Flags|unix.LOCK_NB)
	case "setlk":
		lk := unix.Flock_t{Type: int16(op.Flags), Whence: io.SeekStart, Start: op.Off, Len: op.N}
		err = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lk)
	case "mmap":
		return c.mmap(op, fd)
	case "mwrite":
		return mwrite(op, fd, r)
	default:
		return unix.ENOSYS
	}
	r.N = int64(n)
	return err
}

// truncate sets the time of change, as POSIX leaves open whether truncate does
// that where the size stays.
func (c *differChild) truncate(op differOp) error {
	err := unix.Truncate(c.path(op.A), op.N)
	if err == nil {
		now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, c.path(op.A), now, 0)
	}
	return err
}

func (c *differChild) reset() {
	for i := range differSlots {
		if c.fds[i] >= 0 {
			c.close(i)
		}
		c.munmap(i)
	}
}

func (c *differChild) open(op differOp) error {
	if c.fds[op.S] >= 0 {
		return unix.EMFILE
	}
	fd, err := unix.Open(c.path(op.A), op.Flags|unix.O_CLOEXEC, op.Mode)
	if err == nil {
		c.fds[op.S] = fd
	}
	return err
}

// close is not repeated: the descriptor is gone whatever close says.
func (c *differChild) close(slot int) error {
	err := unix.Close(c.fds[slot])
	c.fds[slot] = -1
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

func (c *differChild) dup(op differOp) error {
	if c.fds[op.T] >= 0 {
		return unix.EMFILE
	}
	fd, err := unix.FcntlInt(uintptr(c.fds[op.S]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		c.fds[op.T] = fd
	}
	return err
}

func setDifferStat(st *unix.Stat_t, r *differResult) {
	r.Stat = differStat{Size: st.Size, Mode: st.Mode, Nlink: uint64(st.Nlink), Mtime: differRecent, Ino: st.Ino}
	if dir := st.Mode&unix.S_IFMT == unix.S_IFDIR; dir {
		r.Stat.Size = 0
	} else if sec, _ := st.Mtim.Unix(); sec < 1<<20 {
		r.Stat.Mtime = sec
	}
}

func fstatDiffer(fd int, r *differResult) error {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil {
		setDifferStat(&st, r)
	}
	return err
}

func (c *differChild) stat(name string, r *differResult) error {
	var st unix.Stat_t
	err := unix.Stat(c.path(name), &st)
	if err == nil {
		setDifferStat(&st, r)
	}
	return err
}

func (c *differChild) sameName(fd int, name string, r *differResult) error {
	var a, b differResult
	err := fstatDiffer(fd, &a)
	if err == nil {
		err = c.stat(name, &b)
	}
	if err == nil && a.Stat.Ino == b.Stat.Ino {
		r.N = 1
	}
	return err
}

// readFile opens, looks, reads and closes.
func (c *differChild) readFile(name string, r *differResult) error {
	fd, err := unix.Open(c.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := fstatDiffer(fd, r); err != nil {
		return err
	}
	r.Data = make([]byte, 1<<20)
	n, err := unix.Read(fd, r.Data)
	r.Data = r.Data[:max(n, 0)]
	return err
}

func (c *differChild) list(name string, r *differResult) error {
	f, err := os.Open(c.path(name))
	if err != nil {
		return err
	}
	defer f.Close()
	r.Names, err = f.Readdirnames(-1)
	slices.Sort(r.Names)
	return err
}

func (c *differChild) mmap(op differOp, fd int) error {
	if c.maps[op.T] != nil {
		return unix.EMFILE
	}
	m, err := unix.Mmap(fd, 0, differMapBytes, unix.PROT_READ, op.Flags)
	if err == nil {
		c.maps[op.T] = m
	}
	return err
}

func (c *differChild) munmap(slot int) error {
	if c.maps[slot] == nil {
		return unix.EBADF
	}
	err := unix.Munmap(c.maps[slot])
	c.maps[slot] = nil
	return err
}

// mread reads from a mapping. EFAULT stands for SIGBUS.
func (c *differChild) mread(op differOp, r *differResult) (err error) {
	m := c.maps[op.T]
	if m == nil {
		return unix.EBADF
	}
	b := make([]byte, op.N)
	defer func() {
		if recover() != nil {
			err = unix.EFAULT
		}
	}()
	r.N = int64(copy(b, m[op.Off:]))
	r.Data = b[:r.N]
	return nil
}

// mwrite writes into what the file has of a range through a mapping of its own.
func mwrite(op differOp, fd int, r *differResult) (err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	m, err := unix.Mmap(fd, 0, differMapBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(m)
	end := min(op.Off+op.N, st.Size, differMapBytes)
	if end <= op.Off {
		return nil
	}
	defer func() {
		if recover() != nil {
			err = unix.EFAULT
		}
	}()
	r.N = int64(copy(m[op.Off:end], op.data()))
	return unix.Msync(m, unix.MS_SYNC)
}
