package daemon

import (
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// launcher is the kvfs run that a mount is to end with. The daemon that it has started hears of its
// end by a signal, and asks for no more than its number. Those that take the mount over are not its
// children, and watch it.
type launcher struct {
	pid   int           // 0: the mount ends with nobody
	ended chan struct{} // closed when it has ended; nil: that is not watched
	file  *os.File      // a pidfd; nil if nothing is watched
}

// watchLauncher watches process pid, which is 0 for a mount that ends with nobody.
func watchLauncher(pid int, log *zap.Logger) (*launcher, error) {
	if pid == 0 {
		return &launcher{}, nil
	}
	file, ended, err := WatchProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("the kvfs run that made it, and with which it ends: %w", err)
	}
	log.Info("this mount ends with the kvfs run that made it", zap.Int("pid", pid))
	return &launcher{pid, ended, file}, nil
}

// close ends the watch.
func (l *launcher) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// WatchProcess returns a pidfd of process pid, which need not be a child, and a channel that is closed
// when the process has ended. Who closes the file ends the watch.
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
