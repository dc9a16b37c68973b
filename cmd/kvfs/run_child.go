package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/launch"
)

// forwarded are the signals that the command gets when kvfs run does.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// ends reports whether a signal asks a program to end.
func ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// signalled is the cause of a context that a signal has ended.
type signalled struct{ sig syscall.Signal }

// Error tells the signal.
func (s *signalled) Error() string { return "ended by " + unix.SignalName(s.sig) }

// run mounts, runs the command to its end, and unmounts. It returns the exit code of the
// command, or an error with a code if no command ran.
//
// With an existing mount there is nothing to do at the end, so this process becomes the command. With a mount
// of its own, run waits for the command and then for its daemons: when kvfs run returns to a shell, to systemd
// or to a container, the blocks are on the SSD and the mount is gone.
func (r *runner) run() (code int, err error) {
	path, code, err := lookPath(r.command[0])
	if err != nil {
		return code, err
	}
	if r.attached {
		return r.become(path)
	}
	began := time.Now()
	// Children that must end with this process end with the thread that started them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	signals := listen() // until the end of the process: a late signal must not replace the exit code
	ctx, stopping := endOnSignal(signals)
	var hurry chan struct{} // closed by a signal once the command has ended
	owner, err := r.openOwner(ctx)
	if owner != nil {
		defer func() { owner.stop(r.ownerDrain+stopGrace, hurry, r.log) }()
	}
	var m *runMount
	if err == nil {
		m, err = r.openMount(ctx)
	}
	sig := stopping()
	if m == nil && sig != nil {
		return 128 + int(sig.sig), sig
	}
	if err != nil {
		return exit.Code(err), err
	}
	if sig != nil { // the mount became ready at that moment
		m.close(nil)
		return 128 + int(sig.sig), sig
	}
	r.log.Debug("mount is ready", zap.String("dir", m.dir), zap.Duration("took", time.Since(began)))
	c, err := r.startCommand(path, m)
	if err != nil {
		m.close(nil)
		return exit.Code(err), err
	}
	r.log.Debug("command is started", zap.Int("pid", c.process.Pid), zap.Duration("added", time.Since(began)))
	status := c.supervise(signals, m)
	c.group.join()
	hurry = make(chan struct{})
	go func() { // ends with the process, at the latest
		for sig := range signals {
			if ends(sig) {
				close(hurry)
				return
			}
		}
	}()
	m.close(hurry)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// listen returns the signals to forward. Signals that this process was started to ignore, as by
// nohup, stay ignored, by the command too.
func listen() chan os.Signal {
	signals := make(chan os.Signal, 64)
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	return signals
}

// endOnSignal returns a context that ends with the first signal that asks for the end. stop
// ends the watch and returns that signal, or nil.
func endOnSignal(signals <-chan os.Signal) (ctx context.Context, stop func() *signalled) {
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // ends with stop
		for {
			select {
			case sig := <-signals:
				if ends(sig) {
					cancel(&signalled{sig.(syscall.Signal)})
				}
			case <-done:
				return
			}
		}
	})
	return ctx, func() *signalled {
		close(done)
		watch.Wait()
		cancel(nil)
		cause, _ := errors.AsType[*signalled](context.Cause(ctx))
		return cause
	}
}

// ready prepares the mount at dir for the command, and returns how to start the command.
func (r *runner) ready(dir string) (*launch.Plan, error) {
	plan, err := r.plan(dir)
	if err == nil {
		err = makeDirs(dir, plan.Dirs)
	}
	if err != nil {
		return nil, err
	}
	r.tell(plan)
	r.setSpec(dir, plan)
	return plan, nil
}

// become replaces this process by the command, for an existing mount. It returns only if that fails.
func (r *runner) become(path string) (code int, err error) {
	if len(r.passed) > 0 {
		r.log.Warn("the mount exists; these flags have no effect", zap.Strings("flags", r.passed))
	}
	plan, err := r.ready(r.dir)
	if err != nil {
		return exit.Code(err), err
	}
	err = &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, plan.Command, plan.Environ(r.environ))}
	return startCode(err), err
}

// startCode returns the exit code for a command that could not be started.
func startCode(err error) int {
	if errors.Is(err, os.ErrNotExist) {
		return exitNotFound
	}
	return exitNotRun
}

// command is the running command.
type command struct {
	process *os.Process
	log     *zap.Logger
	group   *groups
	state   chan syscall.WaitStatus // each stop, and finally the end
}

// startCommand starts the command as if this process had become it: with its standard files,
// other descriptors, process group and terminal.
func (r *runner) startCommand(path string, m *runMount) (*command, error) {
	plan, err := r.ready(m.dir)
	if err != nil {
		return nil, err
	}
	g := newGroups(m.daemon.process.Pid)
	cmd := &exec.Cmd{
		Path: path, Args: plan.Command, Env: plan.Environ(r.environ), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: g.attributes(),
	}
	if err := cmd.Start(); err != nil {
		return nil, exit.With(startCode(err), err)
	}
	c := &command{process: cmd.Process, log: r.log, group: g, state: make(chan syscall.WaitStatus)}
	g.command = c.process
	g.leave()
	go c.wait() // ends with the command
	return c, nil
}

// wait reports each stop and the end of the command.
func (c *command) wait() {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(c.process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil { // no other code waits for it
			c.log.Error("wait for the command", zap.Int("pid", c.process.Pid), zap.Error(err))
			status = exit.Runtime << 8
		}
		c.state <- status
		if !status.Stopped() {
			return
		}
	}
}

// daemonEnded finds the next daemon of the mount after one has ended, and logs what that means
// for the command. It returns nil if there is none.
func (c *command) daemonEnded(m *runMount) *child {
	if h := m.findHeir(); h != nil {
		c.log.Info("another daemon has taken the mount over; kvfs run stops it after the command",
			zap.String("dir", m.dir), zap.Int("pid", h.process.Pid))
		return h
	}
	c.log.Warn("the daemon of the mount has ended; the command continues without its cache", zap.String("dir", m.dir), zap.Stringer("daemon", m.daemon))
	return nil
}

// supervise forwards signals until the command has ended, and returns its status.
func (c *command) supervise(signals <-chan os.Signal, m *runMount) syscall.WaitStatus {
	daemon := m.daemon.ended      // nil while no daemon is known: never ready
	heirs := make(chan *child, 1) // gets one, or nil, for each daemon that has ended
	for {
		select {
		case sig := <-signals:
			_ = c.process.Signal(sig) // the command may have ended
		case <-daemon:
			daemon = nil
			go func() { heirs <- c.daemonEnded(m) }() // ends when the mount has answered, or has been silent for long
		case h := <-heirs:
			if h != nil {
				m.daemon, daemon = h, h.ended
			}
		case status := <-c.state:
			if !status.Stopped() {
				return status
			}
			c.group.stop(status.StopSignal())
		}
	}
}
