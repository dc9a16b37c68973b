package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestLaunch shows that the restrictions of a Launch hold in the program that it becomes.
func TestLaunch(t *testing.T) {
	if os.Getuid() != 0 {
		Skip(t, "a seccomp filter needs root")
	}
	file := filepath.Join(t.TempDir(), "file")
	args := Launch{MaxFileBytes: 1 << 20, NoIOUring: true}.command(
		[]string{"/bin/sh", "-c", "grep ^Seccomp: /proc/self/status; echo $" + helperEnv + "; head -c 3000000 /dev/zero >" + file})
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"="+launchHelper)
	out, err := cmd.CombinedOutput()
	if !strings.HasPrefix(string(out), "Seccomp:\t2\n\n") {
		t.Errorf("got %q, %v; want a filter and a clean environment", out, err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 1<<20 {
		t.Errorf("file: %v, %v; want 1 MiB", info, err)
	}
	if got := (Launch{}).command([]string{"x"}); len(got) != 1 {
		t.Errorf("no restriction: got %q, want the command itself", got)
	}
}
