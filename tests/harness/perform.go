package harness

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// perform does one request by direct system calls, repeated only on EINTR.
func perform(q request) (r response) {
	if q.Thread {
		q.Thread = false
		done := make(chan response)
		go func() { done <- perform(q) }()
		return <-done
	}
	err := performOp(q, &r)
	for errors.Is(err, unix.EINTR) {
		r = response{}
		err = performOp(q, &r)
	}
	if err != nil {
		errno, ok := errors.AsType[syscall.Errno](err)
		if !ok {
			errno = unix.EPROTO
		}
		r.Errno = int(errno)
	}
	return r
}

func performOp(q request, r *response) error {
	switch q.Op {
	case "stat":
		return unix.Stat(q.Path, &r.Stat)
	case "fstat":
		return unix.Fstat(q.FD, &r.Stat)
	case "statfs":
		return unix.Statfs(q.Path, &r.VFS)
	case "access":
		// Not unix.Access: its faccessat2 with the effective ids is not what the engines call.
		return access(q.Path, q.Mode)
	case "rename":
		return unix.Rename(q.Path, q.Path2)
	case "unlink":
		return unix.Unlink(q.Path)
	case "mkdir":
		return unix.Mkdir(q.Path, q.Mode)
	case "rmdir":
		return unix.Rmdir(q.Path)
	case "chmod":
		return unix.Chmod(q.Path, q.Mode)
	case "chown":
		return unix.Chown(q.Path, int(q.Off), int(q.N))
	case "append":
		return appendTo(q)
	case "names":
		return names(q.Path, r)
	case "getxattr":
		r.Data = make([]byte, q.N)
		n, err := unix.Getxattr(q.Path, q.Path2, r.Data)
		r.Data = r.Data[:max(n, 0)]
		return err
	case "setxattr":
		return unix.Setxattr(q.Path, q.Path2, q.Data, 0)
	case "readfile":
		var err error
		r.Data, err = os.ReadFile(q.Path)
		return err
	}
	return performFD(q, r)
}

// appendTo repeats each single call that EINTR ended: repeating the whole request would append
// twice.
func appendTo(q request) error {
	for range q.N {
		open := perform(request{Op: "open", Path: q.Path, Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND, Mode: 0o644})
		if err := open.err(); err != nil {
			return err
		}
		fd := int(open.N)
		written := perform(request{Op: "write", FD: fd, Data: q.Data})
		closed := perform(request{Op: "close", FD: fd})
		switch {
		case written.Errno != 0:
			return written.err()
		case written.N != int64(len(q.Data)):
			return unix.EIO
		case closed.Errno != 0:
			return closed.err()
		}
	}
	return nil
}

func performFD(q request, r *response) error {
	var n int
	var err error
	switch q.Op {
	case "open":
		n, err = unix.Open(q.Path, q.Flags|unix.O_CLOEXEC, q.Mode)
	case "close":
		// Not repeated: the descriptor is gone whatever close returns.
		if err = unix.Close(q.FD); errors.Is(err, unix.EINTR) {
			err = nil
		}
	case "write":
		n, err = unix.Write(q.FD, q.Data)
	case "pwrite":
		n, err = unix.Pwrite(q.FD, q.Data, q.Off)
	case "pread":
		r.Data = make([]byte, q.N)
		n, err = unix.Pread(q.FD, r.Data, q.Off)
		r.Data = r.Data[:max(n, 0)]
	case "fsync":
		err = unix.Fsync(q.FD)
	case "fdatasync":
		err = unix.Fdatasync(q.FD)
	case "ftruncate":
		err = unix.Ftruncate(q.FD, q.N)
	default:
		return unix.ENOSYS
	}
	r.N = int64(n)
	return err
}

func access(path string, mode uint32) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	return accessAt(p, mode)
}

func names(path string, r *response) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r.Names, err = f.Readdirnames(-1)
	return err
}
