package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Root returns the root directory of kvfs's module.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	must(tb, err)
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "kvfs")); err == nil { // go.mod may be that of a test
			return dir
		}
		if dir == "/" {
			tb.Fatal("no cmd/kvfs above the test's directory")
		}
	}
}

var binary struct {
	once sync.Once
	path string
	err  error
}

// Binary returns the path of the kvfs binary: KVFS_BIN if it is set. Otherwise a test process
// builds the binary once, with the race detector if the test has it.
func Binary(tb testing.TB) string {
	tb.Helper()
	root := Root(tb)
	binary.once.Do(func() {
		os.Getenv("KVFS_TEST_SUM") // so that the go command does not take a result of another binary from its cache
		if binary.path = os.Getenv("KVFS_BIN"); binary.path != "" {
			return
		}
		binary.path, binary.err = build(root)
	})
	if binary.err != nil {
		tb.Fatal(binary.err)
	}
	return binary.path
}

// fabricHeader is the header that a build with the tag ofi, RDMA, needs.
const fabricHeader = "/usr/include/rdma/fabric.h"

// Tags returns the flag with the build tags of kvfs, as in the Makefile.
func Tags() string {
	if _, err := os.Stat(fabricHeader); err != nil {
		return "-tags=giouring"
	}
	return "-tags=giouring,ofi"
}

func build(root string) (string, error) {
	dir, err := os.MkdirTemp(processDir(), "bin")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kvfs")
	args := []string{"build", Tags(), "-ldflags=-checklinkname=0", "-o", path} // as the Makefile
	if RaceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/kvfs")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %q: %w\n%s", args, err, out)
	}
	return path, nil
}

// Build builds a kvfs with more arguments for go build, and returns its path. The test removes it.
func Build(tb testing.TB, more ...string) string {
	tb.Helper()
	return buildFrom(tb, Root(tb), newDir(tb, processDir(), "build"), more...)
}

// BuildCommit builds the kvfs of an earlier commit, and returns its path. It skips the test if this is no clone that has it.
func BuildCommit(tb testing.TB, commit string) string {
	tb.Helper()
	if exec.Command("git", "-C", Root(tb), "cat-file", "-e", commit+"^{commit}").Run() != nil {
		Skip(tb, "not a clone with commit %s", commit)
	}
	dir := newDir(tb, processDir(), "build")
	archive, source := filepath.Join(dir, "source.tar"), filepath.Join(dir, "source")
	must(tb, os.Mkdir(source, 0o755))
	run(tb, exec.Command("git", "-C", Root(tb), "archive", "--output="+archive, commit))
	run(tb, exec.Command("tar", "-xf", archive, "-C", source))
	return buildFrom(tb, source, dir)
}

// buildFrom builds kvfs from source into dir.
func buildFrom(tb testing.TB, source, dir string, more ...string) string {
	tb.Helper()
	path := filepath.Join(dir, "kvfs")
	args := append([]string{"build", Tags(), "-buildvcs=false", "-ldflags=-checklinkname=0", "-o", path}, more...)
	cmd := exec.Command("go", append(args, "./cmd/kvfs")...)
	cmd.Dir = source
	run(tb, cmd)
	return path
}

func run(tb testing.TB, cmd *exec.Cmd) {
	tb.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
}

// Deadline is how long the harness waits for an expected event. It is generous: reaching it fails
// the test.
const Deadline = 60 * time.Second

// Kvfs runs a kvfs command to its end and returns its output and its exit code.
func Kvfs(tb testing.TB, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	return KvfsAs(tb, nil, args...)
}

// KvfsAs is Kvfs as another user.
func KvfsAs(tb testing.TB, user *User, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	binary := Binary(tb) // the first call builds it, which may take longer than Deadline
	ctx, cancel := context.WithTimeout(tb.Context(), Deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	setUser(cmd, user)
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		tb.Fatalf("kvfs %q: %v", args, err)
	}
	if ctx.Err() != nil {
		tb.Fatalf("kvfs %q: not done after %v\n%s", args, Deadline, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Poll calls cond again and again until it returns true, and fails the test if that takes longer
// than Deadline. It is for state of another process that has no event.
func Poll(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.After(Deadline)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("after %v still not: %s", Deadline, what)
		}
	}
}

// Freeze stops a process by SIGSTOP and returns when none of its threads runs any more: kill returns before. The
// process goes on by SIGCONT, at the end of the test at the latest. One that has ended is no error.
func Freeze(tb testing.TB, pid int) {
	tb.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil && err != unix.ESRCH {
		tb.Fatalf("stop process %d: %v", pid, err)
	}
	tb.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // it may have ended
	Poll(tb, "all threads stand still", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			_, state, _ := strings.Cut(string(stat), ") ")
			if err == nil && strings.IndexAny(state, "TDZX") != 0 { // D: stopped when it comes out of the kernel
				return false
			}
		}
		return true
	})
}
