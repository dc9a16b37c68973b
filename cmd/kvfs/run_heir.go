package main

import (
	"context"
	"os"
)

// findHeir returns the daemon that answers the mount by now, if that ends with this run; else nil.
func (m *runMount) findHeir() *child {
	now, err := findMount(m.dir)
	if err != nil || !isOurs(now) {
		return nil
	}
	var s *statusDocument
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	for again := true; again; again = s.Mount.PID == 0 && (&pace{}).wait(ctx) { // 0: it tests the mount first
		text, err := readControl(now.Mountpoint, "status", statusTimeout)
		if err == nil {
			s, err = parseStatus(text)
		}
		if err != nil {
			return nil // it is dead
		}
	}
	if s.Mount.EndsWith != os.Getpid() {
		return nil // it is somebody else's
	}
	pidfd, ended, err := watchProcess(s.Mount.PID)
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
