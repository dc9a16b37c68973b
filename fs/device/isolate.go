package device

import (
	"os"
	"runtime"
	"strconv"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// A notice takes the kernel's lock on a directory, and no signal ends the wait for it. A client
// that waits for an answer of ours may hold the lock. If our process is killed at that moment,
// there is a cycle. The notifying thread cannot end before the client goes on. The client
// cannot go on before its request is answered or the connection is aborted. The kernel aborts
// the connection when its last descriptor is closed, which happens when the last thread of our
// process ends. So a killed daemon would stay for ever, and every client of it.
//
// Therefore the notifying thread has its own table of descriptors. Of the mount it holds only a
// clone that has read no request. When the process is killed, all other threads end and close
// the descriptors that have read requests. The kernel fails these requests, the lock becomes
// free, and the notifying thread ends as well. This fails if another client gets the lock
// first, because nobody reads its request any more. For this case the process has a watcher,
// which aborts the connection (OpenAbort).

// beginNotices implements channel. The goroutine keeps its thread, and the thread ends with it.
func (d *loop) beginNotices() {
	runtime.LockOSThread() // never unlocked: no other goroutine may use this thread
	d.open.RLock()
	defer d.open.RUnlock()
	if d.open.closed {
		return
	}
	fd, err := d.another(0)
	if err != nil && !d.own {
		// The mount is of another user name space. Its process has all descriptors, so this one
		// keeps no more alive than a clone would.
		fd, err = unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		d.log.Debug("cannot clone /dev/fuse: notices share the descriptor of the requests", zap.Error(err))
		return
	}
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		d.log.Debug("cannot separate descriptors: notices share the descriptor of the requests", zap.Error(err))
		unix.Close(fd)
		return
	}
	d.notices = fd
	closed := make(chan struct{})
	go func() { // at once: in the table of all other threads
		unix.Close(fd)
		close(closed)
	}()
	if err := CloseOthers(fd); err != nil {
		d.log.Warn("cannot close the descriptors of the notifying thread", zap.Error(err))
	}
	<-closed
}

// endNotices implements channel.
func (d *loop) endNotices() {
	if d.notices >= 0 {
		unix.Close(d.notices)
	}
}

// CloseOthers closes the descriptors of the calling thread's own table, except keep, the
// standard ones, and those that Go's runtime may use on any thread.
func CloseOthers(keep int) error {
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

// ofRuntime reports whether the descriptor of that name in dir is the poller of Go's runtime,
// or the descriptor that wakes the poller.
func ofRuntime(dir int, name string) bool {
	var buf [64]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return false
	}
	target := string(buf[:n])
	return target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]"
}
