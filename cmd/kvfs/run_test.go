package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestParseRunFlags shows which flags are handed on to kvfs mount, as they were
// given, and that what follows the command is the command's.
func TestParseRunFlags(t *testing.T) {
	for _, c := range []struct{ args, passed, rest []string }{
		{[]string{"--", "x"}, nil, []string{"x"}},
		{[]string{"x", "--memory-size", "1GiB"}, nil, []string{"x", "--memory-size", "1GiB"}},
		{[]string{"--mount", "/m", "--memory-size", "1GiB", "--print", "--", "x", "--", "y"}, []string{"--memory-size=1GiB"}, []string{"x", "--", "y"}},
		{[]string{"--disk=path=/a,size=1GiB", "--disk", "path=/b c,size=2GiB", "--memory-keep", "x"},
			[]string{"--disk=path=/a,size=1GiB", "--disk=path=/b c,size=2GiB", "--memory-keep=true"}, []string{"x"}},
		{[]string{"--config", "f.yaml", "--config-json={}", "--engine=none", "x"}, []string{"--config=f.yaml", "--config-json={}"}, []string{"x"}},
	} {
		flags := newRunCommand().Flags()
		passed, err := parseRunFlags(flags, c.args)
		if err != nil || !slices.Equal(passed, c.passed) || !slices.Equal(flags.Args(), c.rest) {
			t.Errorf("%q: got %q, %q, %v, want %q, %q", c.args, passed, flags.Args(), err, c.passed, c.rest)
		}
	}
	if _, err := parseRunFlags(newRunCommand().Flags(), []string{"--nonsense", "x"}); err == nil {
		t.Error("an unknown flag is taken")
	}
}

// TestRunPrint shows the output of --print, and that the command is not run.
func TestRunPrint(t *testing.T) {
	cleanEnv(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	engine, marker := filepath.Join(dir, "vllm"), filepath.Join(dir, "ran")
	must(t, os.WriteFile(engine, []byte("#!/bin/sh\ntouch "+marker), 0o755))
	code, out, errs := runCLI("run", "--print", "--memory-size=64MiB", "--", engine, "serve", "m", "--kv-transfer-config={}")
	if code != exit.OK {
		t.Fatalf("code %d: %s", code, errs)
	}
	for _, want := range []string{
		"mount: kvfs mount --ready-fd 3 --memory-size=64MiB -- " + dir + "/kvfs-XXXXXX\n", "engine: vllm\n", "variable: KVFS_MOUNT=" + dir + "/kvfs-XXXXXX ",
		"skipped: --kv-transfer-config: the command has it\n", "command: " + engine + " serve m '--kv-transfer-config={}'\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command ran")
	}
}

// TestRunUsage shows the help and the wrong uses that never reach a mount.
func TestRunUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"run", "--help"}, exit.OK, "kvfs run [flags] -- CMD"},
		{[]string{"run", "-h", "x"}, exit.OK, "kvfs run [flags] -- CMD"},
		{[]string{"run"}, exit.Usage, "no command is named"},
		{[]string{"run", "--"}, exit.Usage, "no command is named"},
		{[]string{"run", "--readytimeout", "1s", "--", "x"}, exit.Usage, "--ready-timeout"},
		{[]string{"run", "--print", "--engine", "sglang", "--", "vllm", "serve"}, exit.Usage, "the command is vllm, not sglang"},
	} {
		var stdout, stderr strings.Builder
		code := run(c.args, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String()+stderr.String(), c.text) {
			t.Errorf("%q: got %d, %q, %q, want %d, %q", c.args, code, stdout.String(), stderr.String(), c.code, c.text)
		}
	}
}

// TestEngineMemory shows the default, which depends on the machine, and what a flag
// may say.
func TestEngineMemory(t *testing.T) {
	if n, err := engineMemory(""); err != nil || n < 1<<30 || n > 10<<30 {
		t.Errorf("default: got %d, %v", n, err)
	}
	if n, err := engineMemory("3GiB"); err != nil || n != 3<<30 {
		t.Errorf("3GiB: got %d, %v", n, err)
	}
	for _, bad := range []string{"0", "-1GiB", "12", "x"} {
		if n, err := engineMemory(bad); err == nil {
			t.Errorf("%s: got %d, want an error", bad, n)
		}
	}
}

// TestHideInherited shows that descriptors which a child would inherit are hidden and come
// back, and that others never appear.
func TestHideInherited(t *testing.T) {
	var fds [2]int
	must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	want := func(when string, first, second int) {
		t.Helper()
		for i, want := range []int{first, second} {
			if got, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFD, 0); err != nil || got != want {
				t.Errorf("%s: flags of descriptor %d: got %d, %v, want %d", when, i, got, err, want)
			}
		}
	}
	restore := hideInherited()
	want("hidden", unix.FD_CLOEXEC, unix.FD_CLOEXEC)
	restore()
	want("restored", unix.FD_CLOEXEC, 0)
}

// TestIsStopped shows what counts as stopped.
func TestIsStopped(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if isStopped(cmd.Process.Pid) {
		t.Error("stopped before")
	}
	must(t, cmd.Process.Signal(unix.SIGSTOP))
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatal(status, err)
	}
	if !isStopped(cmd.Process.Pid) {
		t.Error("not stopped")
	}
}
