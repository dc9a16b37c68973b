package fs

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// pollTime bounds the question to the mount.
const pollTime = 5 * time.Second

// RefusePoll makes the kernel learn that the mount at dir has no POLL. From then on the kernel
// answers poll, select and epoll itself: files can be read and written at once.
//
// Without it, a Go process that opens files of a mount which it serves itself can stop for
// good. Go's runtime adds each opened file to epoll, and the kernel then asks the same process,
// in which no goroutine runs at that moment. So the mounting process calls RefusePoll on a
// mount that answers, before others can know the mount.
func RefusePoll(dir string) {
	done := make(chan struct{})
	go func() { // ends when the mount has answered, or is gone
		defer close(done)
		fd, err := unix.Open(filepath.Join(dir, ".kvfs", "status"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return // the next poll teaches the kernel the same
		}
		defer unix.Close(fd)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	}()
	t := time.NewTimer(pollTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
