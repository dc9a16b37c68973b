package device

import (
	"os"
	"runtime"
	"strconv"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// A notice takes the kernel's lock on a directory, and no signal ends the wait for it. Who
// holds the lock may be a client that waits for an answer of ours. If the process is killed
// at that moment, the notifying thread cannot end before the client goes on; the client
// cannot go on before its request is answered or the mount is given up; and the kernel gives
// that up when the last descriptor of it is closed, which a process does when its last
// thread ends. So a killed daemon would stay for ever, and every client of it.
//
// Therefore the notifying thread has a table of descriptors of its own, with nothing in it
// of the mount but a clone that has read no request. When the process is killed, all other
// threads end, and with them the descriptors by which requests were read; the kernel fails
// these requests, the lock is free, and the notifying thread ends as well. That fails where another
// client gets the lock first, whose request nobody reads any more: for this the process has a watcher,
// which has the kernel give up the connection (OpenAbort).

// beginNotices implements channel. The goroutine stays on its thread until it ends, and
// the thread ends with it.
func (d *loop) beginNotices() {
	runtime.LockOSThread() // never unlocked: nobody else may use this thread
	d.open.RLock()
	defer d.open.RUnlock()
	if d.open.closed {
		return
	}
	fd, err := d.another(0)
	if err != nil && !d.own {
		// The mount is of another user name space. Its process has all descriptors, so that this
		// one does not keep more alive than a clone would.
		fd, err = unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		d.log.Debug("notices share the descriptor of the requests", zap.Error(err))
		return
	}
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		d.log.Debug("notices share the descriptor of the requests", zap.Error(err))
		unix.Close(fd)
		return
	}
	d.notices = fd
	closed := make(chan struct{})
	go func() { // at once: in the table of all other threads
		unix.Close(fd)
		close(closed)
	}()
	if err := closeOthers(fd); err != nil {
		d.log.Warn("descriptors of the notifying thread", zap.Error(err))
	}
	<-closed
}

// endNotices implements channel.
func (d *loop) endNotices() {
	if d.notices >= 0 {
		unix.Close(d.notices)
	}
}

// closeOthers closes the descriptors of the calling thread's own table, but for keep, the
// standard ones, and what Go's runtime may use on any thread.
func closeOthers(keep int) error {
	dir, err := unix.Open("/proc/thread-self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc/thread-self/fd", Err: err}
	}
	var buf [64 << 10]byte
	var names []string
	for {
		n, err := unix.ReadDirent(dir, buf[:])
		if err != nil {
			unix.Close(dir)
			return os.NewSyscallError("getdents64", err)
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= 2 || fd == keep || fd == dir || ofRuntime(dir, name) {
			continue
		}
		unix.Close(fd)
	}
	return os.NewSyscallError("close", unix.Close(dir))
}

// ofRuntime reports whether the descriptor of that name in dir is the poller of Go's
// runtime or what wakes it.
func ofRuntime(dir int, name string) bool {
	var buf [64]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return false
	}
	target := string(buf[:n])
	return target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]"
}
