// Package mounts is about the kvfs mounts of this machine, as the mount table has them: to find one, to see
// whether its daemon lives, to take it away. It asks no daemon for more than a sign of life, and never waits
// for long, since a dead or stuck one answers nothing.
package mounts

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
)

// Type is the type of kvfs mounts in mount tables.
const Type = "fuse.kvfs"

// IsOurs reports whether m is not nil and is a kvfs mount.
func IsOurs(m *mountinfo.Info) bool { return m != nil && m.FSType == Type }

// Find returns the mount at dir, with dir as in the mount table, or nil if there is none. It
// reads the table before it touches dir, because a dead or stuck mount does not answer.
func Find(dir string) (m *mountinfo.Info, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if m, err = device.TopMount(abs); m != nil || err != nil {
		return m, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	resolved := filepath.Join(parent, filepath.Base(abs))
	if m, err = device.TopMount(resolved); m != nil || err != nil {
		return m, err
	}
	if resolved, err = filepath.EvalSymlinks(resolved); err != nil {
		if errors.Is(err, iofs.ErrNotExist) {
			err = &iofs.PathError{Op: "stat", Path: dir, Err: iofs.ErrNotExist}
		}
		return nil, err
	}
	return device.TopMount(resolved)
}

// List returns the kvfs mounts whose source, the first column of the mount table, begins with prefix. It asks no mount.
func List(prefix string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !IsOurs(m) || !strings.HasPrefix(m.Source, prefix), false
	})
}

// ReadOnly reports whether m refuses changes.
func ReadOnly(m *mountinfo.Info) bool { return slices.Contains(strings.Split(m.VFSOptions, ","), "ro") }

// ErrSilent reports that a daemon seems to live but has not answered in time.
var ErrSilent = errors.New("its daemon has not answered")

// Answers returns nil if the daemon of the mount at point answers, even with an error. It returns ENOTCONN
// or ECONNABORTED if the daemon is dead, and ErrSilent if it is silent for Timeout, as a stopped one is.
func Answers(point string) error { return answersWithin(context.Background(), point) }

// answersWithin is Answers until ctx ends.
func answersWithin(ctx context.Context, point string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { // ends when the daemon answers or dies; else with the process
		var st unix.Statfs_t
		done <- unix.Statfs(point, &st)
	}()
	select {
	case err := <-done:
		if Dead(err) {
			return err
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", point, ErrSilent)
	}
}

// DeadText says that the daemon of a mount is dead, and what to do: to restart it comes first, because that keeps the
// blocks in memory.
func DeadText(dir string) string {
	return fmt.Sprintf("the daemon of %s is dead. kvfs mount %[1]s, with the settings it had, starts it again with its blocks. kvfs umount %[1]s gives them up", dir)
}

// Dead reports whether an error of an operation on a mount says that its daemon is dead.
func Dead(err error) bool { return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) }

// Timeout bounds the wait for a daemon that does not answer.
const Timeout = 10 * time.Second

// lastWords is the time that a call which heeds its context has to say why it ends.
const lastWords = 5 * time.Second

// Within makes calls, all at a time. It returns their results when all have returned, or lastWords after the deadline, at
// which their context ends. The result of a call that hangs, as one on a dead mount may, is nil; its goroutine ends with
// the process.
func Within[T any](ctx context.Context, deadline time.Duration, calls []func(context.Context) T) []*T {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	type result struct {
		i int
		v T
	}
	done := make(chan result, len(calls))
	for i, call := range calls {
		go func() { done <- result{i, call(ctx)} }()
	}
	results := make([]*T, len(calls))
	late := time.NewTimer(deadline + lastWords)
	defer late.Stop()
	for range calls {
		select {
		case r := <-done:
			results[r.i] = &r.v
		case <-late.C:
			return results
		}
	}
	return results
}
