package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running helper.
type Process struct {
	Pid    int
	Stdin  io.WriteCloser
	Stdout io.Reader

	tb     testing.TB
	cmd    *exec.Cmd
	stderr bytes.Buffer
	waited bool
}

// ProcessOptions say how to start a helper.
type ProcessOptions struct {
	User *User // nil means the test's own
	// Cloneflags are namespaces to unshare, for example unix.CLONE_NEWNS.
	Unshare uintptr
	Env     []string
}

// StartHelper starts the helper of that name in its own process. The process ends with the test at
// the latest.
func StartHelper(tb testing.TB, opts ProcessOptions, name string, args ...string) *Process {
	tb.Helper()
	if helpers[name] == nil {
		tb.Fatalf("no helper %q: register it in TestMain", name)
	}
	p := &Process{tb: tb}
	p.cmd = exec.Command("/proc/self/exe", args...)
	p.cmd.Env = append(append(os.Environ(), opts.Env...), helperEnv+"="+name)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:    syscall.SIGKILL,
		Unshareflags: opts.Unshare,
	}
	setUser(p.cmd, opts.User)
	p.cmd.Stderr = &p.stderr
	var err error
	if p.Stdin, err = p.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	if p.Stdout, err = p.cmd.StdoutPipe(); err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatalf("start helper %s: %v", name, err)
	}
	p.Pid = p.cmd.Process.Pid
	tb.Cleanup(p.Kill)
	return p
}

// Kill kills the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	if p.waited {
		return
	}
	p.waited = true
	unix.Kill(p.Pid, unix.SIGKILL)
	p.cmd.Wait()
}

// Wait waits for the process to end by itself and returns its exit code. Read all of Stdout before.
func (p *Process) Wait() int {
	p.tb.Helper()
	p.Stdin.Close()
	timer := time.AfterFunc(Deadline, func() { unix.Kill(p.Pid, unix.SIGKILL) })
	err := p.cmd.Wait()
	p.waited = true
	if !timer.Stop() {
		p.tb.Fatalf("helper did not end within %v\n%s", Deadline, p.stderr.String())
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.tb.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Stderr returns the error output of the process, once the process has ended.
func (p *Process) Stderr() string { return p.stderr.String() }

// RunHelper runs a helper to its end.
func RunHelper(tb testing.TB, opts ProcessOptions, name string, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	p := StartHelper(tb, opts, name, args...)
	out, err := io.ReadAll(p.Stdout)
	must(tb, err)
	code = p.Wait()
	return string(out), p.Stderr(), code
}

// StartCommand starts a program of the machine in the same way as a helper.
func StartCommand(tb testing.TB, opts ProcessOptions, argv ...string) *Process {
	tb.Helper()
	return StartHelper(tb, opts, commandHelper, argv...)
}

const commandHelper = "kvfs-command"

// commandMain becomes the program that args name.
func commandMain(args []string) int {
	path, err := exec.LookPath(args[0])
	if err == nil {
		unix.Umask(0o022)
		err = unix.Exec(path, args, withoutHelper())
	}
	fmt.Fprintf(os.Stderr, "%q: %v\n", args, err)
	return 127
}

// withoutHelper is the environment without the variable of helpers.
func withoutHelper() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, helperEnv+"=") })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
