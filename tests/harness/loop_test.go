package harness

import (
	"os"
	"os/exec"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestLaunch shows that the restrictions of a Launch hold in the program that it becomes.
func TestLaunch(t *testing.T) {
	if os.Getuid() != 0 {
		Skip(t, "a seccomp filter needs root")
	}
	args := Launch{MaxFiles: 1000, NoIOUring: true}.command(
		[]string{"/bin/sh", "-c", "grep ^Seccomp: /proc/self/status; echo $" + helperEnv + "; ulimit -n"})
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"="+launchHelper)
	out, err := cmd.CombinedOutput()
	if string(out) != "Seccomp:\t2\n\n1000\n" {
		t.Errorf("got %q, %v; want a filter, a clean environment and 1000 files", out, err)
	}
	if got := (Launch{}).command([]string{"x"}); len(got) != 1 {
		t.Errorf("no restriction: got %q, want the command itself", got)
	}
}
