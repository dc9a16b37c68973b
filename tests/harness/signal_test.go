package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

const signalledEnv = "KVFS_TEST_SIGNALLED"

// TestSignalled shows that after SIGTERM nothing of a test process is left: no mount, no directory,
// no name space, no daemon.
func TestSignalled(t *testing.T) {
	NeedFuse(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestSignalledInside$")
	cmd.Env = append(os.Environ(), signalledEnv+"=1", "KVFS_BIN="+Binary(t))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	daemon, names := 0, 0
	for lines.Scan() {
		if n, _ := fmt.Sscanf(lines.Text(), "ready %d %d", &daemon, &names); n == 2 {
			break
		}
	}
	if daemon == 0 {
		t.Fatalf("it did not get ready: %v", cmd.Wait())
	}
	unix.Kill(cmd.Process.Pid, unix.SIGTERM)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(unix.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
	for _, parent := range parents {
		dir := filepath.Join(parent, fmt.Sprint(dirPrefix, cmd.Process.Pid))
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there, with mounts %q", dir, MountPoints(dir))
		}
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/run/netns/*%d-*", cmd.Process.Pid)); len(left) > 0 {
		t.Errorf("name spaces of %d: %q are left", names, left)
	}
	Poll(t, "the daemon has ended", func() bool {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", daemon))
		return len(words) == 0 // gone, or not waited for yet
	})
}

// TestSignalledInside makes everything and waits for its end.
func TestSignalledInside(t *testing.T) {
	if os.Getenv(signalledEnv) == "" {
		t.Skip("run by its outer test")
	}
	names := 0
	if netns.Lacks() == "" {
		names = 2
		NewNet(t, names)
	}
	if LacksLoop("ext4") == "" {
		MountLoop(t, LoopOptions{})
	}
	d := Mount(t, Options{})
	fmt.Printf("ready %d %d\n", d.Pid, names)
	for { // A test goes on while its process is told to end.
		t.Run("next", func(t *testing.T) { Mount(t, Options{}) })
	}
}
