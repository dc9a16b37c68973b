package takeover

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestExec: a process starts another one while it writes a block. The child has the descriptor until
// execve(2) closes it, which is told to the daemon under a lock that /proc/<pid>/stat waits for:
// neither must wait for the other.
func TestExec(t *testing.T) {
	s := newSite(t)
	s.mount()
	s.write(0, 1)
	f, err := os.OpenFile(s.path(0), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(block(1)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	const children = 200
	ended := make(chan error, children)
	go func() { // ends with the children, or the mount
		for range children {
			ended <- exec.Command("/bin/true").Run()
		}
	}()
	for range children {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			continue
		case <-time.After(harness.Deadline):
		}
		t.Error("execve waits for the daemon")
		unix.Unmount(s.dir, unix.MNT_FORCE|unix.MNT_DETACH)
		unix.Kill(s.daemons[0].pid, unix.SIGKILL)
		break
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(s.path(0))
	if err != nil || string(got) != string(block(1)) {
		t.Errorf("what was written: %v", err)
	}
}
