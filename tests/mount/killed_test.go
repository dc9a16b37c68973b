package mount

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// killWatchers kills the children of the daemon.
func killWatchers(t *testing.T, d *harness.Daemon) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(d.Pid), "task/*/children"))
	must(t, "children of the daemon", err)
	n := 0
	for _, name := range files {
		text, _ := os.ReadFile(name) // the thread may have ended
		for _, child := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(child)
			must(t, "number of a process", err)
			must(t, "kill the watcher", unix.Kill(pid, unix.SIGKILL))
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d children of the daemon, want its watcher", n)
	}
	harness.Poll(t, "the daemon has missed its watcher", func() bool { return strings.Contains(d.Log(), "watcher of this mount has ended") })
}

// TestKilledFreesClients shows that requests to a killed daemon fail, also those that it has not read, and although
// its connection is held open. The watcher sees to it. If the watcher was killed before, kvfs umount and kvfs mount
// do.
func TestKilledFreesClients(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	if os.Getuid() != 0 {
		harness.Skip(t, "needs root, to hold the connection of another process")
	}
	for _, c := range []struct {
		name    string
		before  func(*testing.T, *harness.Daemon)
		recover func(*testing.T, *harness.Daemon)
		flags   []string
	}{
		{"watcher", func(*testing.T, *harness.Daemon) {}, func(*testing.T, *harness.Daemon) {}, nil},
		{"umount", killWatchers, func(t *testing.T, d *harness.Daemon) {
			if _, errs, code := harness.Kvfs(t, "umount", d.Dir); code != 0 {
				t.Errorf("umount: exit code %d: %s", code, errs)
			}
			wantUnmounted(t, d)
		}, nil},
		{"mount", killWatchers, func(t *testing.T, d *harness.Daemon) { d.Restart() }, nil},
		{"mount, spliced", killWatchers, func(t *testing.T, d *harness.Daemon) { d.Restart() }, []string{"--memory-passthrough=off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{Flags: c.flags})
			store(t, d.Path("group.tmp"), pattern("x", mib))
			client := harness.NewActor(t, nil)
			release := harness.HoldConnection(t, d.Pid)
			defer release() // which frees the client of a test that fails
			c.before(t, d)
			harness.Freeze(t, d.Pid)
			done := make(chan error, 1)
			go func() { done <- client.Rename(d.Path("group.tmp"), d.Path("block")) }() // ends with the connection
			d.Kill()
			c.recover(t, d)
			select {
			case err := <-done:
				if err == nil {
					t.Error("the rename succeeded, and nobody answered it")
				}
			case <-time.After(harness.Deadline):
				t.Error("the client hangs")
				release()
				<-done
			}
		})
	}
}

// TestAborted: umount -f of a busy mount aborts its connection and leaves it in the mount table. The
// daemon exits 1, as systemd wants to start it again, and keeps the blocks for the next start. Where the
// mount goes, umount -f is an umount.
func TestAborted(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	if os.Getuid() != 0 {
		harness.Skip(t, "needs root, to unmount by force")
	}
	d := harness.Mount(t, harness.Options{})
	store(t, d.Path("block"), pattern("x", mib))
	busy, err := unix.Open(d.Dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, "open the mount point", err)
	defer unix.Close(busy)
	wantErrno(t, "umount -f", unix.Unmount(d.Dir, unix.MNT_FORCE), unix.EBUSY)
	harness.Poll(t, "the daemon has ended", func() bool { return !d.Running() })
	if d.ExitCode != 1 || !strings.Contains(d.Log(), "aborted") {
		t.Errorf("exit code %d, want 1 and a word about it:\n%s", d.ExitCode, d.Log())
	}
	d.Restart()
	wantBytes(t, d.Path("block"), pattern("x", mib))

	must(t, "umount -f", unix.Unmount(d.Dir, unix.MNT_FORCE))
	harness.Poll(t, "the daemon has ended", func() bool { return !d.Running() })
	if d.ExitCode != 0 {
		t.Errorf("exit code %d after umount -f, want 0", d.ExitCode)
	}
}

// TestExecWhileWriting shows that a process which writes a block can start others: execve closes the copy of the descriptor,
// and holds a lock of the kernel meanwhile that much of /proc/<pid> needs. That close commits nothing.
func TestExecWhileWriting(t *testing.T) {
	for _, flags := range [][]string{nil, {"--memory-passthrough=off"}} {
		d := harness.Mount(t, harness.Options{Flags: flags})
		for i := range 20 {
			p := d.Path(strconv.Itoa(i))
			f, err := os.Create(p + ".tmp") // its close asks what else the process has open
			must(t, "create", err)
			_, err = f.Write(pattern("x", mib))
			must(t, "write", err)
			ctx, cancel := context.WithTimeout(t.Context(), harness.Deadline)
			must(t, "start a process", exec.CommandContext(ctx, "true").Run())
			cancel()
			_, err = f.Write(pattern("y", mib))
			must(t, "write on", err)
			must(t, "close", f.Close())
			must(t, "rename", os.Rename(p+".tmp", p))
			wantBytes(t, p, append(pattern("x", mib), pattern("y", mib)...))
		}
	}
}
