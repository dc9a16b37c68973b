package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// groups arranges the process groups of a run, so that the command has the
// terminal as if kvfs run were not there.
//
// The command stays in the group that the shell made for kvfs run. Ctrl-C and Ctrl-Z reach it
// and the rest of a pipeline, and the shell's signals to its job reach it. kvfs run itself
// leaves that group, so that a signal of the terminal does not arrive twice, once directly and
// once forwarded. A signal to kvfs run alone is forwarded.
//
// kvfs run cannot make a group of its own if it leads the one that it leaves, as jobs of shells
// do. Then it joins the group of its daemon.
//
// When the terminal stops the command, kvfs run returns to the group and stops too, because the
// shell waits for that. The shell continues the whole group later.
//
// A leader of a session, such as the first process of a container, cannot leave
// its group. Its command gets a group of its own, and the terminal with it if there
// is one.
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

// attributes returns the attributes of the command.
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

// leave moves kvfs run out of the group of the command. From then on kvfs run may write to the
// terminal from the background. If it can no longer leave, because its daemon has died, a
// signal of the terminal reaches the command twice.
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

// stop stops kvfs run after the terminal has stopped the command, until the shell continues
// both. Other stops are for the command alone: the sender of SIGSTOP will send SIGCONT as well.
// The caller must be locked to its thread.
func (g *groups) stop(sig syscall.Signal) {
	if g.leader || sig != unix.SIGTSTP && sig != unix.SIGTTIN && sig != unix.SIGTTOU {
		return
	}
	g.join()
	if sig != unix.SIGTSTP {
		sig = unix.SIGSTOP // the others are ignored here
	}
	// To this thread, so that it goes no further. Another thread could take a signal to the
	// process a moment later.
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	// Continued. A shell continues the whole group; other programs may continue only this
	// process.
	if isStopped(g.command.Pid) {
		_ = g.command.Signal(unix.SIGCONT)
	}
	g.leave()
}

// isStopped reports whether a process is stopped by a signal. Source:
// proc_pid_stat(5).
func isStopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	after := bytes.LastIndex(text, []byte(") "))
	return err == nil && after >= 0 && bytes.HasPrefix(text[after+2:], []byte("T"))
}
