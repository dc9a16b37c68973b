package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/tiers/mem"
)

// stopGrace is how long a daemon may take to stop, beyond its drain_timeout, before it is
// killed. The engine and the tiers close one after the other, each within daemon.CloseGrace.
const stopGrace = 3 * daemon.CloseGrace

// runMount is the mount of a run.
type runMount struct {
	dir   string
	made  bool // this run made dir
	temp  bool // its name is not used again
	log   *zap.Logger
	drain time.Duration // how long the daemon may wait for blocks on their way to the SSD

	daemon *child // started for the mount, or known to have taken it over; nil: none yet
}

// mountArgs returns the arguments of kvfs mount for a mount at dir.
func (r *runner) mountArgs(dir string) []string {
	return append(append([]string{"mount", "--ready-fd", "3"}, r.passed...), "--", dir)
}

// openMount mounts and waits until the mount answers. If ctx ends, it undoes what it has begun.
func (r *runner) openMount(ctx context.Context) (*runMount, error) {
	m := &runMount{dir: r.dir, log: r.log, drain: time.Duration(r.cfg.DrainTimeout)}
	if err := m.makeDir(); err != nil {
		return nil, err
	}
	args := slices.Insert(r.mountArgs(m.dir), 1, "--"+endsWithFlag, strconv.Itoa(os.Getpid()))
	var err error
	if m.daemon, err = startChild(ctx, args, m.dir, r.flags.readyTimeout); err == nil {
		return m, nil
	}
	m.close(nil)
	return nil, err
}

// makeDir makes the mount point if it is absent.
func (m *runMount) makeDir() (err error) {
	if m.dir == "" {
		m.temp = true
		m.dir, err = temporaryDir()
	} else if err = os.Mkdir(m.dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return exit.With(exit.Mount, fmt.Errorf("mount point: %w", err))
	}
	m.made = true
	return nil
}

// temporaryDir makes a directory and returns its path as in mount tables. It removes empty
// directories of killed runs: the name holds the process and its pid name space.
func temporaryDir() (string, error) {
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	prefix := "kvfs-" + strings.Trim(space, "pid:[]") + "-"
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*-*")) // the pattern is right
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && unix.Kill(n, 0) == unix.ESRCH {
			_ = unix.Rmdir(dir) // fails unless it is empty and no mount point; another run may be faster
		}
	}
	dir, err := os.MkdirTemp("", prefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// makeDirs makes directories below a mount.
func makeDirs(mount string, dirs []string) error {
	for _, dir := range dirs {
		if err := os.Mkdir(mount+"/"+dir, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("directory of the engine: %w", err)
		}
	}
	return nil
}

// close unmounts and removes what this run has made. It waits for the daemon as long as its
// configuration allows, or until hurry; then it kills the daemon. A program that keeps files of
// the mount open keeps them, and close does not wait for it.
func (m *runMount) close(hurry <-chan struct{}) {
	if m.daemon == nil {
		m.removeDir()
		return
	}
	m.daemon.stop(m.drain+stopGrace, hurry, m.log)
	for h := m.findHeir(); h != nil; h = m.findHeir() { // the daemon may have handed the mount over, and so may each heir
		h.stop(m.drain+stopGrace, hurry, m.log)
	}
	m.detach()
	if m.temp {
		m.freeMemory()
	}
	m.removeDir()
}

// freeMemory frees the blocks that a killed or keeping daemon left in memory for a mount point of this
// run: no later daemon will adopt them. Blocks in memory.dir are freed by the next daemon that uses it.
func (m *runMount) freeMemory() {
	stores, _ := mem.List() // the error is about other stores, which are unreadable
	for _, s := range stores {
		if s.Label != m.dir || s.Alive {
			continue
		}
		if err := mem.Discard(s.Dir); err != nil {
			m.log.Warn("cannot free the memory of the daemon: its blocks stay", zap.String("dir", s.Dir), zap.Error(err))
		}
	}
}

// detach unmounts if the daemon has not, because it was killed.
func (m *runMount) detach() {
	now, err := mounts.Find(m.dir)
	if err != nil || !mounts.IsOurs(now) || !mounts.Abandoned(now) && !mounts.Dead(mounts.Answers(now.Mountpoint)) {
		return // gone, or another mount is there
	}
	ctx, cancel := context.WithTimeout(context.Background(), umountWait)
	defer cancel()
	if err := mounts.GiveUp(ctx, now); err != nil {
		m.log.Error("the mount stays", zap.String("dir", now.Mountpoint), zap.Error(err))
	}
}

// removeDir removes the mount point if this run made it. Files that an engine wrote into it
// after the daemon had died stay.
func (m *runMount) removeDir() {
	if !m.made {
		return
	}
	if err := os.Remove(m.dir); err != nil {
		m.log.Warn("the mount point stays", zap.Error(err))
	}
}
