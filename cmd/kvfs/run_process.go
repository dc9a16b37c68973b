package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/launch"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// forwarded are the signals that the command gets when kvfs run does.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

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

// groups arranges the process groups of a run, so that the command has the terminal as if kvfs run were not there.
//
// The command stays in the group that the shell made for kvfs run. Ctrl-C and Ctrl-Z reach it and the rest of a pipeline,
// and the shell's signals to its job reach it. kvfs run itself leaves that group, so that a signal of the terminal does not
// arrive twice, once directly and once forwarded. A signal to kvfs run alone is forwarded.
//
// kvfs run cannot make a group of its own if it leads the one that it leaves, as jobs of shells
// do. Then it joins the group of its daemon.
//
// When the terminal stops the command, kvfs run returns to the group and stops too, because the
// shell waits for that. The shell continues the whole group later.
//
// A leader of a session, such as the first process of a container, cannot leave its group. Its command gets a group of its
// own, and the terminal with it if there is one.
type groups struct {
	home    int // process group that kvfs run was started in
	away    int // group that it moves to; 0: a new one
	leader  bool
	tty     int         // a standard file that is the terminal of a leader, or -1
	command *os.Process // set when it is started
}

// newGroups inspects this process. daemon is the process of the daemon.
func newGroups(daemon int) *groups {
	g := &groups{home: unix.Getpgrp(), tty: -1}
	session, err := unix.Getsid(0)
	g.leader = err == nil && session == os.Getpid()
	if !g.leader && g.home == os.Getpid() {
		g.away = daemon
	}
	for fd := 0; g.leader && fd <= 2; fd++ {
		if front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && front == g.home {
			g.tty = fd
			break
		}
	}
	return g
}

func (g *groups) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if g.leader {
		a.Setpgid = true
		if g.tty >= 0 {
			a.Foreground, a.Ctty = true, g.tty
		}
	}
	return a
}

// leave moves kvfs run out of the group of the command. From then on kvfs run may write to the terminal from the background.
// If it can no longer leave, because its daemon has died, a signal of the terminal reaches the command twice.
func (g *groups) leave() {
	// After the start of the command, which would inherit this.
	signal.Ignore(syscall.SIGTTOU, syscall.SIGTTIN)
	if g.leader {
		return
	}
	_ = unix.Setpgid(0, g.away)
}

// join moves kvfs run back into the group that it was started in.
func (g *groups) join() {
	if g.leader {
		if g.tty >= 0 {
			_ = unix.IoctlSetPointerInt(g.tty, unix.TIOCSPGRP, g.home)
		}
		return
	}
	if g.home == os.Getpid() {
		_ = unix.Setpgid(0, 0)
	} else {
		_ = unix.Setpgid(0, g.home)
	}
}

// stop stops kvfs run after the terminal has stopped the command, until the shell continues both. Other stops are for the
// command alone: the sender of SIGSTOP will send SIGCONT as well. The caller must be locked to its thread.
func (g *groups) stop(sig syscall.Signal) {
	if g.leader || sig != unix.SIGTSTP && sig != unix.SIGTTIN && sig != unix.SIGTTOU {
		return
	}
	g.join()
	if sig != unix.SIGTSTP {
		sig = unix.SIGSTOP // the others are ignored here
	}
	// To this thread, so that it goes no further. Another thread could take a signal to the process a moment later.
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	// Continued. A shell continues the whole group; other programs may continue only this process.
	if isStopped(g.command.Pid) {
		_ = g.command.Signal(unix.SIGCONT)
	}
	g.leave()
}

// isStopped reports whether a process is stopped by a signal. Source: proc_pid_stat(5).
func isStopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	after := bytes.LastIndex(text, []byte(") "))
	return err == nil && after >= 0 && bytes.HasPrefix(text[after+2:], []byte("T"))
}

// findHeir returns the daemon that now answers the mount, if that daemon ends with this run, else nil.
func (m *runMount) findHeir() *child {
	now, err := mounts.Find(m.dir)
	if err != nil || !mounts.IsOurs(now) {
		return nil
	}
	var s *status.Document
	ctx, cancel := context.WithTimeout(context.Background(), mounts.Timeout)
	defer cancel()
	for again := true; again; again = s.Mount.PID == 0 && (&daemon.Pace{}).Wait(ctx) { // 0: it still tests the mount
		text, err := client.Read(now.Mountpoint, "status", mounts.Timeout)
		if err == nil {
			s, err = status.Parse(text)
		}
		if err != nil {
			return nil // it is dead
		}
	}
	if s.Mount.EndsWith != os.Getpid() {
		return nil // it belongs to another run
	}
	pidfd, ended, err := mounts.WatchProcess(s.Mount.PID)
	if err != nil {
		return nil // it has ended since
	}
	p, err := os.FindProcess(s.Mount.PID)
	if err != nil {
		pidfd.Close()
		return nil
	}
	return &child{process: p, ended: ended, pidfd: pidfd}
}

// child is a daemon that kvfs run must stop: one that it has started, for a mount or as the owner, or one that has taken the
// mount over. The latter is no child process, and stops by itself if kvfs run is killed (launcher).
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
