package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// child is a daemon that kvfs run must stop: one that it has started, for a mount or as the
// owner, or one that has taken the mount over. The latter is no child process, and stops by
// itself if kvfs run is killed (launcher).
type child struct {
	process *os.Process
	ended   chan struct{}    // closed when it has ended
	state   *os.ProcessState // its exit state, or nil if that cannot be known
	pidfd   *os.File         // nil if this run started it
}

// String says how the child has ended.
func (c *child) String() string {
	if c.state == nil {
		return "process " + strconv.Itoa(c.process.Pid)
	}
	return c.state.String()
}

// startChild starts kvfs with args, which contain --ready-fd 3. It waits until kvfs is ready at where, for at
// most timeout. If that fails, the caller must still stop the child, unless it is nil.
func startChild(ctx context.Context, args []string, where string, timeout time.Duration) (*child, error) {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	cmd := exec.Command("/proc/self/exe", args...) // this very program, even if its file was replaced
	cmd.Args[0] = "kvfs"
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // standard output belongs to the command
	cmd.ExtraFiles = []*os.File{theirs}
	// systemd waits for the engine, if at all.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "NOTIFY_SOCKET=") })
	// A process group of its own: Ctrl-C is for the engine, which may still need the mount to
	// end. The daemon stops if this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	restore := hideInherited()
	err = cmd.Start()
	restore()
	theirs.Close()
	if err != nil {
		return nil, err
	}
	c := &child{process: cmd.Process, ended: make(chan struct{})}
	go func() { // ends with the daemon
		_ = cmd.Wait() // the state has the result
		c.state = cmd.ProcessState
		close(c.ended)
	}()
	return c, c.waitReady(ctx, ready, args[0]+" "+where, timeout)
}

// waitReady waits for the line that the daemon writes when it answers.
func (c *child) waitReady(ctx context.Context, ready *os.File, what string, timeout time.Duration) error {
	line := make(chan error, 1)
	go func() { // ends when ready is closed, at the latest
		_, err := bufio.NewReader(ready).ReadString('\n')
		line <- err
	}()
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case err := <-line:
		if err == nil {
			return nil
		}
	case <-t.C:
		return exit.With(exit.Mount, fmt.Errorf("kvfs %s: not ready after %v", what, timeout))
	case <-ctx.Done():
		return ctx.Err()
	}
	// The descriptor was closed without a line: the daemon has failed, and has logged the reason.
	<-c.ended
	code := c.state.ExitCode()
	if code <= 0 {
		code = exit.Mount
	}
	return exit.With(code, fmt.Errorf("kvfs %s: %v before it was ready", what, c.state))
}

// stop stops the daemon. It waits until grace has passed or hurry is closed; then it kills the daemon.
func (c *child) stop(grace time.Duration, hurry <-chan struct{}, log *zap.Logger) {
	_ = c.process.Signal(syscall.SIGTERM) // it may have ended
	t := time.NewTimer(grace)
	defer t.Stop()
	pid := zap.Int("pid", c.process.Pid)
	select {
	case <-c.ended:
	case <-hurry:
		log.Warn("not waiting for the daemon; blocks on their way to the SSD are lost", pid)
	case <-t.C:
		log.Warn("the daemon does not stop; killing it", pid, zap.Duration("after", grace))
	}
	_ = c.process.Kill() // it may have ended
	<-c.ended
	if c.pidfd != nil {
		c.pidfd.Close()
		_ = c.process.Release() // no other code waits for it
	}
}

// hideInherited keeps the inherited descriptors beyond the standard ones from started processes
// until restore is called. They are for the command; a daemon would keep them open.
func hideInherited() (restore func()) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return func() {} // without /proc there are no mounts either
	}
	var hidden []int
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.CloseOnExec(fd)
			hidden = append(hidden, fd)
		}
	}
	return func() {
		for _, fd := range hidden {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) // it was open
		}
	}
}
