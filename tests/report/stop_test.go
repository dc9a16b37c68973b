package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStopped asks the report to end while go runs: it does, and so does all that go has started,
// also what has left its process group and holds its output. The counts are printed, the exit code is 1, and the
// temporary directory of the tests is gone.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "report")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	child := filepath.Join(dir, "child")
	script := "#!/bin/sh\ntrap '' INT\ntouch $TMPDIR/left\nsetsid sleep 1000 &\necho $! > " + child + ".tmp\nmv " + child + ".tmp " + child + "\nwait\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "--", "./...")
	temp := t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+temp)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	pid := 0
	await(t, "go runs", func() bool {
		b, err := os.ReadFile(child)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the report does not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(out.String(), "0 passed, 1 failed") {
		t.Errorf("exit code %d\n%s", code, out.String())
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v %v", left, err)
	}
	await(t, "what go has started ends", func() bool { return syscall.Kill(pid, 0) != nil })
}

// await polls until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(10 * time.Millisecond) // reason: other processes have no event
	}
}
