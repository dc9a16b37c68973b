package main

import (
	"context"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// heir is a daemon that has taken the mount of a run over. It is no child of kvfs run, which still
// answers for the mount: it stops the heir when the command has ended. An heir stops by itself if
// kvfs run is killed (launcher).
type heir struct {
	process *os.Process
	pidfd   *os.File
	ended   chan struct{} // closed when it has
}

// findHeir returns the daemon that answers the mount by now, if that ends with this run; else nil.
func (m *runMount) findHeir() *heir {
	now, err := mounts.Find(m.dir)
	if err != nil || !mounts.IsOurs(now) {
		return nil
	}
	var s *status.Document
	ctx, cancel := context.WithTimeout(context.Background(), mounts.Timeout)
	defer cancel()
	for again := true; again; again = s.Mount.PID == 0 && (&daemon.Pace{}).Wait(ctx) { // 0: it tests the mount first
		text, err := client.Read(now.Mountpoint, "status", mounts.Timeout)
		if err == nil {
			s, err = status.Parse(text)
		}
		if err != nil {
			return nil // it is dead
		}
	}
	if s.Mount.EndsWith != os.Getpid() {
		return nil // it is somebody else's
	}
	pidfd, ended, err := daemon.WatchProcess(s.Mount.PID)
	if err != nil {
		return nil // it has ended since
	}
	p, err := os.FindProcess(s.Mount.PID)
	if err != nil {
		pidfd.Close()
		return nil
	}
	return &heir{p, pidfd, ended}
}

// stop has the heir stop, and waits for that as for the daemon before it.
func (h *heir) stop(m *runMount, hurry <-chan struct{}) {
	_ = h.process.Signal(syscall.SIGTERM) // it may have ended
	t := time.NewTimer(m.drain + stopGrace)
	defer t.Stop()
	pid := zap.Int("pid", h.process.Pid)
	select {
	case <-h.ended:
	case <-hurry:
		m.log.Warn("not waiting for the daemon that has taken the mount over; blocks on their way to the SSD are lost", pid)
	case <-t.C:
		m.log.Warn("the daemon that has taken the mount over does not stop; killing it", pid, zap.Duration("after", m.drain+stopGrace))
	}
	_ = h.process.Kill() // it may have ended
	<-h.ended
	h.pidfd.Close()
	_ = h.process.Release() // it is no child
}
