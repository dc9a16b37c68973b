package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// HoldConnection opens once more what a daemon has open of its connections to the kernel, as a thread of the daemon has that
// the kernel cannot end: the connections do not end with the daemon then, but with release or the test.
func HoldConnection(tb testing.TB, pid int) (release func()) {
	tb.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(tb, err)
	pidfd, err := unix.PidfdOpen(pid, 0)
	must(tb, err)
	defer unix.Close(pidfd)
	var held []int
	release = sync.OnceFunc(func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	})
	tb.Cleanup(release)
	for _, name := range fds {
		fd, err := strconv.Atoi(filepath.Base(name))
		if target, _ := os.Readlink(name); err != nil || target != "/dev/fuse" {
			continue
		}
		more, err := unix.PidfdGetfd(pidfd, fd, 0)
		must(tb, err)
		held = append(held, more)
	}
	return release
}
