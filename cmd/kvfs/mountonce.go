package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// lockWait bounds how long mountOnce waits for another process that mounts there, which takes
// no longer than the mount does.
const lockWait = 5 * time.Second

// mountOnce calls mount, which mounts at dir, while no other process of ours does so, and fails
// if one has done it since mountPoint looked: an attached mount may wait long for its owner
// before it mounts, and the lower of two would be one that nobody sees, nor can unmount.
func mountOnce(ctx context.Context, dir string, mount func() error) error {
	if err := notMounted(dir); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount point %s: %w", dir, err)
	}
	defer unix.Close(fd)
	tryLock(ctx, fd)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := notMounted(dir); err != nil {
		return err
	}
	return mount()
}

// tryLock locks the directory of fd. Where it cannot, for the file system has no locks, or
// somebody keeps one that is not ours, a look whether it is mounted has to do. There is no event
// for a lock that becomes free, other than a call that cannot be ended.
func tryLock(ctx context.Context, fd int) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// notMounted fails if a mount of ours is at dir.
func notMounted(dir string) error {
	m, found, err := findMount(dir)
	switch {
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case found && m.fsType == fsType:
		return fmt.Errorf("mount point %s: a kvfs daemon serves it already", dir)
	}
	return nil
}
