package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/mem"
)

// stopGrace is how long a daemon may take to stop, beyond its drain_timeout, until it is
// killed: the engine and the tiers close one after the other, each within
// closeGrace.
const stopGrace = 3 * closeGrace

// runMount is the mount of a run: one that it made, with its daemon, or one that
// it found.
type runMount struct {
	dir   string
	made  bool // dir was made here
	temp  bool // and nobody will use its name again
	log   *zap.Logger
	drain time.Duration // how long the daemon may wait for blocks on their way to the SSD

	// Nil and empty if the mount was found.
	daemon *exec.Cmd
	exited chan struct{} // closed when the daemon has been waited for
	heir   *heir         // that has taken the mount over, as far as known; nil: none
}

// pid returns the process of the daemon, 0 if it is not ours.
func (m *runMount) pid() int {
	if m.daemon == nil {
		return 0
	}
	return m.daemon.Process.Pid
}

// mountArgs are the arguments of kvfs mount for a mount at dir.
func (r *runner) mountArgs(dir string) []string {
	return append(append([]string{"mount", "--ready-fd", "3"}, r.passed...), "--", dir)
}

// openMount mounts and waits until the mount answers, or attaches to the one that is
// there. ctx ends the wait, and what was begun is undone then.
func (r *runner) openMount(ctx context.Context) (*runMount, error) {
	m := &runMount{dir: r.dir, log: r.log, drain: time.Duration(r.cfg.DrainTimeout)}
	if r.attached {
		if len(r.passed) > 0 {
			r.log.Warn("the mount is there already; these flags have no effect", zap.Strings("flags", r.passed))
		}
		return m, nil
	}
	if err := m.makeDir(); err != nil {
		return nil, err
	}
	args := slices.Insert(r.mountArgs(m.dir), 1, "--"+endsWithFlag, strconv.Itoa(os.Getpid()))
	err := m.start(ctx, args, r.flags.readyTimeout)
	if err == nil {
		return m, nil
	}
	m.close(nil)
	return nil, err
}

// makeDir makes the mount point, unless it is there.
func (m *runMount) makeDir() (err error) {
	if m.dir == "" {
		m.temp = true
		m.dir, err = temporaryDir()
	} else if err = os.Mkdir(m.dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return withCode(exitMount, fmt.Errorf("mount point: %w", err))
	}
	m.made = true
	return nil
}

// temporaryDir makes a directory and returns it as mount tables have it.
func temporaryDir() (string, error) {
	dir, err := os.MkdirTemp("", "kvfs-")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// start starts kvfs mount and waits until it is ready.
func (m *runMount) start(ctx context.Context, args []string, timeout time.Duration) error {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command("/proc/self/exe", args...) // this very program, even if its file was replaced
	cmd.Args[0] = "kvfs"
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // the standard output is the command's
	cmd.ExtraFiles = []*os.File{theirs}
	// systemd waits for the engine, if it waits at all.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "NOTIFY_SOCKET=") })
	// An own process group: Ctrl-C is for the engine, which may still need the
	// mount to end. The daemon stops if this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	restore := hideInherited()
	err = cmd.Start()
	restore()
	theirs.Close()
	if err != nil {
		return err
	}
	m.daemon, m.exited = cmd, make(chan struct{})
	go func() { // ends with the daemon
		_ = cmd.Wait() // ProcessState says it
		close(m.exited)
	}()
	return m.waitReady(ctx, ready, timeout)
}

// waitReady waits for the line that the daemon writes when its mount answers.
func (m *runMount) waitReady(ctx context.Context, ready *os.File, timeout time.Duration) error {
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
		return withCode(exitMount, fmt.Errorf("the mount at %s is not ready after %v", m.dir, timeout))
	case <-ctx.Done():
		return ctx.Err()
	}
	// The descriptor was closed without a line: the daemon has failed, and said why.
	<-m.exited
	code := m.daemon.ProcessState.ExitCode()
	if code <= 0 {
		code = exitMount
	}
	return withCode(code, fmt.Errorf("kvfs mount %s: %v before it was ready", m.dir, m.daemon.ProcessState))
}

// makeDirs makes directories below the mount.
func (m *runMount) makeDirs(dirs []string) error {
	for _, dir := range dirs {
		if err := os.Mkdir(m.dir+"/"+dir, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("directory of the engine: %w", err)
		}
	}
	return nil
}

// close takes away what was mounted and made here. It waits for the daemon as long
// as that may take by its configuration, or until hurry; then it kills it. A
// program that keeps files of the mount open keeps them, and nothing waits for it.
func (m *runMount) close(hurry <-chan struct{}) {
	if m.daemon == nil {
		m.removeDir()
		return
	}
	_ = m.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
	t := time.NewTimer(m.drain + stopGrace)
	defer t.Stop()
	select {
	case <-m.exited:
	case <-hurry:
		m.log.Warn("not waiting for the daemon; blocks on their way to the SSD are lost")
	case <-t.C:
		m.log.Warn("the daemon does not stop; killing it", zap.Duration("after", m.drain+stopGrace))
	}
	_ = m.daemon.Process.Kill() // it may have ended
	<-m.exited
	if m.heir != nil {
		m.heir.stop(m, hurry)
	}
	for h := m.findHeir(); h != nil; h = m.findHeir() { // it may have handed the mount over in its turn
		h.stop(m, hurry)
	}
	m.detach()
	if m.temp {
		m.freeMemory()
	}
	m.removeDir()
}

// freeMemory frees the blocks that a daemon which was killed, or was told to keep them, left in memory,
// where no later one will adopt them: those of a mount point that was made for this run.
// Those in memory.dir are freed by the next daemon that uses it.
func (m *runMount) freeMemory() {
	stores, _ := mem.List() // the error is about others, which could not be read
	for _, s := range stores {
		if s.Label != m.dir || s.Alive {
			continue
		}
		if err := mem.Discard(s.Dir); err != nil {
			m.log.Warn("the memory of the daemon stays", zap.String("dir", s.Dir), zap.Error(err))
		}
	}
}

// detach takes away the mount if the daemon has not, because it was killed.
func (m *runMount) detach() {
	now, found, err := findMount(m.dir)
	if err != nil || !found || now.fsType != fsType || !stale(now.point) {
		return // gone, or another one is there by now
	}
	ctx, cancel := context.WithTimeout(context.Background(), umountWait)
	defer cancel()
	if err := detach(ctx, now.point, true); err != nil {
		m.log.Error("the mount stays", zap.String("dir", now.point), zap.Error(err))
	}
}

// removeDir removes the mount point if it was made here. What an engine wrote
// into it after the daemon had died stays.
func (m *runMount) removeDir() {
	if !m.made {
		return
	}
	if err := os.Remove(m.dir); err != nil {
		m.log.Warn("the mount point stays", zap.Error(err))
	}
}

// hideInherited keeps descriptors that this process was given, beyond the standard
// ones, from the processes that are started until restore is called. They are for
// the command; a daemon would keep them open.
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
