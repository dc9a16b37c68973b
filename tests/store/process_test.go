package store

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestPollNeedsNobody: the kernel answers poll(2) of a file by itself from the start, as a mount whose
// daemon is stopped shows. (Asked, a process that uses its own mount could stop for good.)
func TestPollNeedsNobody(t *testing.T) {
	owner := harness.Serve(t, harness.Options{})
	for name, mount := range map[string]func() *harness.Daemon{
		"embedded": func() *harness.Daemon { return harness.Mount(t, harness.Options{}) },
		"spliced": func() *harness.Daemon {
			return harness.Mount(t, harness.Options{Flags: []string{"--memory-passthrough=off"}})
		},
		"attached": func() *harness.Daemon { return owner.Attach() },
	} {
		t.Run(name, func(t *testing.T) {
			d := mount()
			fd, err := unix.Open(d.Path("block"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
			if err != nil {
				t.Fatal(&os.PathError{Op: "open", Path: d.Path("block"), Err: err})
			}
			defer unix.Close(fd)
			for _, p := range []*harness.Daemon{owner, d} {
				harness.Freeze(t, p.Pid)
				defer unix.Kill(p.Pid, unix.SIGCONT)
			}
			done := make(chan error, 1)
			go func() { // ends with the test at the latest: then the daemons go on
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
				done <- err
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(harness.Deadline):
				t.Error("the kernel asks the daemon")
			}
		})
	}
}

// TestHangup: SIGHUP ends no daemon; it is a line in its log.
func TestHangup(t *testing.T) {
	owner := harness.Serve(t, harness.Options{})
	for name, d := range map[string]*harness.Daemon{"owner": owner, "mount": harness.Mount(t, harness.Options{}), "attached": owner.Attach()} {
		must(t, unix.Kill(d.Pid, unix.SIGHUP))
		harness.Poll(t, name+" says that it has heard", func() bool { return !d.Running() || strings.Contains(d.Log(), "SIGHUP") })
		if code := d.Stop(); code != 0 {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}

// TestKilledTogether shows that clients of an attached mount get an error if its process and the owner are killed.
// That also holds if a process still has the connection open, as a thread of the owner that cannot end, and if the
// watcher of the mount is about to start.
func TestKilledTogether(t *testing.T) {
	for range 10 {
		killTogether(t)
	}
}

func killTogether(t *testing.T) {
	t.Helper()
	owner := harness.Serve(t, harness.Options{})
	d := owner.Attach()
	defer harness.HoldConnection(t, d.Pid)() // which frees the client of a test that fails
	owner.Kill()
	done := make(chan error, 1)
	go func() { // ends with the connection
		_, err := os.Stat(d.Path("block"))
		done <- err
	}()
	d.Kill()
	select {
	case err := <-done:
		if !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("the client got %v", err)
		}
	case <-time.After(harness.Deadline):
		t.Error("the client hangs")
	}
}
