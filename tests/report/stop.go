package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopTime is how long those that are asked to stop may take. Then they are killed.
const stopTime = 10 * time.Second

// errStopped is why a command has not run to its end.
var errStopped = errors.New("stopped by a signal")

// stopper ends the commands when this process is told to end: each with its process group, and processes that outlive
// that.
type stopper struct {
	signals chan os.Signal
	stopped atomic.Bool
}

func newStopper() *stopper {
	s := &stopper{signals: make(chan os.Signal, 1)}
	signal.Notify(s.signals, os.Interrupt, syscall.SIGTERM)
	// What is left of a group becomes a child of this process, which else could not know it.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return s
}

// run starts cmd in a process group of its own, calls meanwhile, and waits until the command has ended.
// meanwhile has to return when the command and all that it started have ended.
func (s *stopper) run(cmd *exec.Cmd, meanwhile func()) error {
	if s.stopped.Load() {
		return errStopped
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() { // ends with the command
		defer close(watched)
		select {
		case sig := <-s.signals:
			s.stopped.Store(true)
			end(cmd.Process.Pid, sig.(syscall.Signal), ended)
		case <-ended:
		}
	}()
	meanwhile()
	err := cmd.Wait()
	close(ended)
	<-watched
	if s.stopped.Load() {
		return errStopped
	}
	return err
}

// end has a process group end, then the processes that are left to this one by deaths, until none is left:
// after stopTime by SIGKILL.
func end(group int, sig syscall.Signal, ended <-chan struct{}) {
	_ = syscall.Kill(-group, sig) // it may have ended
	sig = syscall.SIGTERM
	late := time.NewTimer(stopTime)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ended != nil || len(children()) > 0 {
		select {
		case <-ended:
			ended = nil
		case <-late.C:
			sig = syscall.SIGKILL
			if ended != nil {
				_ = syscall.Kill(-group, sig) // an ended group gives an error
			}
		case <-tick.C:
		}
		for _, pid := range children() {
			if pid == group { // run waits for it
				continue
			}
			_ = syscall.Kill(pid, sig)                           // likewise
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // likewise
		}
	}
}

// children lists the processes of which this one is the parent.
func children() []int {
	files, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is right
	var pids []int
	for _, name := range files {
		text, _ := os.ReadFile(name) // the thread may have ended
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
