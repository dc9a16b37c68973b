package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// options say how to start kvfs run.
type options struct {
	flags  []string
	env    []string
	helper string // the command is the test program as this helper
	attr   *syscall.SysProcAttr
	files  []*os.File
	stdio  *os.File // for all three standard files; nil: pipes
	under  []string // a command that starts kvfs run
	plain  bool     // without flags of our own
}

// launcher is a running kvfs run.
type launcher struct {
	t      testing.TB
	cmd    *exec.Cmd
	tmp    string // where temporary mount points are made
	stdin  io.WriteCloser
	out    *bufio.Reader
	ended  chan struct{}
	state  *os.ProcessState // once it has ended
	stderr safeBuffer
	silent chan struct{} // closed when no process can write to stderr any more
}

// safeBuffer may be read while a process writes.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start starts kvfs run with a small mount in a temporary directory. Both are gone when the test ends.
func start(t testing.TB, o options, command ...string) *launcher {
	t.Helper()
	harness.KvfsOnly(t, "kvfs run")
	harness.NeedFuse(t)
	l := &launcher{t: t, tmp: resolved(t, t.TempDir()), ended: make(chan struct{}), silent: make(chan struct{})}
	args := append(o.under, harness.Binary(t), "run")
	if !o.plain {
		args = append(args, "--memory-size", "64MiB")
	}
	args = append(append(append(args, o.flags...), "--"), command...)
	l.cmd = exec.Command(args[0], args[1:]...)
	l.cmd.Env = append(append(os.Environ(), "TMPDIR="+l.tmp), o.env...)
	if o.helper != "" {
		l.cmd.Env = append(l.cmd.Env, "KVFS_TEST_HELPER="+o.helper)
	}
	l.cmd.SysProcAttr, l.cmd.ExtraFiles = o.attr, o.files
	var stderr io.Reader
	if o.stdio != nil {
		l.cmd.Stdin, l.cmd.Stdout, l.cmd.Stderr = o.stdio, o.stdio, o.stdio
	} else {
		stdin, err := l.cmd.StdinPipe()
		must(t, err)
		stdout, err := l.cmd.StdoutPipe()
		must(t, err)
		stderr, err = l.cmd.StderrPipe()
		must(t, err)
		l.stdin, l.out = stdin, bufio.NewReader(stdout)
	}
	must(t, l.cmd.Start())
	go func() { // ends when the last process closes it
		if stderr != nil {
			io.Copy(&l.stderr, stderr)
		}
		close(l.silent)
	}()
	go func() { // ends with kvfs run, which cleanup ends
		l.state, _ = l.cmd.Process.Wait() // not cmd.Wait: that closes the pipes, which are still read
		close(l.ended)
	}()
	t.Cleanup(l.cleanup)
	return l
}

func (l *launcher) cleanup() {
	select {
	case <-l.ended:
	default:
		unix.Kill(l.cmd.Process.Pid, unix.SIGKILL)
		<-l.ended
	}
	if l.t.Failed() {
		l.t.Logf("standard error:\n%s", l.stderr.String())
	}
	if l.stdin != nil {
		l.stdin.Close()
	}
	// After SIGKILL the daemon stops by itself; it may be at it.
	harness.Poll(l.t, "mounts gone", func() bool { return len(harness.MountPoints(l.tmp)) == 0 })
}

// wait waits for the end and returns what is left of the standard output, and the
// status.
func (l *launcher) wait() (string, syscall.WaitStatus) {
	l.t.Helper()
	var rest []byte
	if l.out != nil {
		done := make(chan struct{})
		go func() { // ends with the standard output, or with the test
			rest, _ = io.ReadAll(l.out)
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(harness.Deadline):
			l.t.Fatalf("standard output is still open after %v\n%s", harness.Deadline, l.stderr.String())
		}
	}
	for what, event := range map[string]chan struct{}{"running": l.ended, "writing": l.silent} {
		select {
		case <-event:
		case <-time.After(harness.Deadline):
			l.t.Fatalf("still %s after %v\n%s", what, harness.Deadline, l.stderr.String())
		}
	}
	return string(rest), l.state.Sys().(syscall.WaitStatus)
}

// wantCode waits for the end and checks the exit code and that nothing is left.
func (l *launcher) wantCode(want int) (stdout string) {
	l.t.Helper()
	stdout, status := l.wait()
	if !status.Exited() || status.ExitStatus() != want {
		l.t.Errorf("kvfs run: got exit %d, signal %v, want exit %d\n%s", status.ExitStatus(), status.Signal(), want, l.stderr.String())
	}
	l.wantClean()
	return stdout
}

// wantClean fails if a mount or a mount point is left.
func (l *launcher) wantClean() {
	l.t.Helper()
	if left := harness.MountPoints(l.tmp); len(left) != 0 {
		l.t.Errorf("still mounted: %q", left)
	}
	entries, err := os.ReadDir(l.tmp)
	must(l.t, err)
	for _, e := range entries {
		l.t.Errorf("left: %s", filepath.Join(l.tmp, e.Name()))
	}
}

// line reads one line of the command.
func (l *launcher) line() string {
	l.t.Helper()
	line, err := readLine(l.out)
	if err != nil {
		l.t.Fatalf("read from the command: %v\n%s", err, l.stderr.String())
	}
	return line
}

func readLine(r *bufio.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	got := make(chan result, 1)
	go func() { // ends with the line, or the process
		line, err := r.ReadString('\n')
		got <- result{strings.TrimRight(line, "\r\n"), err}
	}()
	select {
	case r := <-got:
		return r.line, r.err
	case <-time.After(harness.Deadline):
		return "", fmt.Errorf("nothing after %v", harness.Deadline)
	}
}

// wantLine fails unless the next line of the command is want.
func (l *launcher) wantLine(want string) {
	l.t.Helper()
	if got := l.line(); got != want {
		l.t.Errorf("the command says %q, want %q", got, want)
	}
}

// ready waits for a target and returns its process and its mount.
func (l *launcher) ready() (pid int, mount string) {
	l.t.Helper()
	line := l.line()
	if n, err := fmt.Sscanf(line, "ready %d %s", &pid, &mount); err != nil || n != 2 {
		l.t.Fatalf("the command says %q, want ready", line)
	}
	return pid, mount
}

// say writes a line to the command.
func (l *launcher) say(line string) {
	l.t.Helper()
	_, err := io.WriteString(l.stdin, line+"\n")
	must(l.t, err)
}

// signal sends a signal to kvfs run.
func (l *launcher) signal(s unix.Signal) {
	l.t.Helper()
	must(l.t, unix.Kill(l.cmd.Process.Pid, s))
}

// daemonOf returns the process of the daemon of a mount.
func daemonOf(t testing.TB, mount string) int {
	t.Helper()
	text, err := os.ReadFile(mount + "/.kvfs/status")
	must(t, err)
	var s struct {
		PID int `json:"pid"`
	}
	must(t, json.Unmarshal(text, &s))
	return s.PID
}

func resolved(t testing.TB, dir string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	must(t, err)
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// script writes an executable file and returns its path.
func script(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o755))
	return path
}
