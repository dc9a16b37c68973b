package takeover

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

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
	ctx, cancel := context.WithTimeout(t.Context(), harness.Deadline)
	defer cancel()
	ended := make(chan error, 1)
	go func() { // ends with the children, or the mount
		var err error
		for range 200 {
			err = errors.Join(err, exec.Command("/bin/true").Run())
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("execve waits for the daemon")
		unix.Unmount(s.dir, unix.MNT_FORCE|unix.MNT_DETACH)
		unix.Kill(s.daemons[0].pid, unix.SIGKILL)
		<-ended
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(s.path(0))
	if err != nil || string(got) != string(block(1)) {
		t.Errorf("what was written: %v", err)
	}
}
