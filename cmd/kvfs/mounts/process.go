package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// server is the process that serves a mount: its daemon, or the process that attaches it to an owner.
type server struct {
	pid   int
	ended chan struct{} // closed when it has ended
	pidfd *os.File
}

// findServer returns the process that serves m, or nil if it is unknown or this process. It
// asks the mount nothing: an unanswered question would keep the mount busy.
func findServer(m *mountinfo.Info) *server {
	pid := Server(m)
	if pid == 0 || pid == os.Getpid() {
		return nil
	}
	pidfd, ended, err := WatchProcess(pid)
	if err != nil {
		return nil // it has ended since
	}
	return &server{pid, ended, pidfd}
}

// wait waits until s has ended or ctx is done. It returns the number of s if s has not ended, else 0.
func (s *server) wait(ctx context.Context) int {
	if s == nil {
		return 0
	}
	select {
	case <-s.ended:
		return 0
	case <-ctx.Done():
		return s.pid
	}
}

// close ends the watch.
func (s *server) close() {
	if s != nil {
		s.pidfd.Close()
	}
}

// WatchProcess returns a pidfd of process pid, which need not be a child, and a channel that is
// closed when the process has ended. Close the file to end the watch.
func WatchProcess(pid int) (*os.File, chan struct{}, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	ended := make(chan struct{})
	go func() { // ends with the process, or when the file is closed
		err := raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
		if err == nil {
			close(ended)
		}
	}()
	return file, ended, nil
}
