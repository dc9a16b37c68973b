package fs

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// pollTime bounds how long a mount is asked.
const pollTime = 5 * time.Second

// RefusePoll has the kernel learn that the mount at dir, which answers, has no POLL: from then on it
// answers poll, select and epoll itself, that files can be read and written at once. Without, Go's
// runtime in a process that has files of a mount that it serves itself can stop for good: it tells
// epoll of each file that it opens, and the kernel asks the same process, in which nobody runs at that
// moment. So it is called by who mounts, before others can know the mount.
func RefusePoll(dir string) {
	done := make(chan struct{})
	go func() { // ends when the mount has answered, or is gone
		defer close(done)
		fd, err := unix.Open(filepath.Join(dir, ".kvfs", "status"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return // the first who polls finds it out
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
