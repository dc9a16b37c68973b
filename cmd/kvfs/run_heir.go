package main

import (
	"context"
	"os"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// findHeir returns the daemon that now answers the mount, if that daemon ends with this run,
// else nil.
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
