package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/fs/device"
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
	fd, err := openUnmounted(dir)
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

// openUnmounted opens dir, and not what another process mounts there meanwhile: nobody may answer that yet.
func openUnmounted(dir string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	fd, err := unix.Openat2(parent, filepath.Base(dir), &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV})
	if err != unix.EXDEV && err != unix.ENOSYS {
		return fd, err
	}
	// There is another mount, or no such call (Linux before 5.6).
	if err := notMounted(dir); err != nil {
		return -1, err
	}
	return unix.Open(dir, flags, 0)
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

// notMounted fails if a mount of ours is at dir, an absolute path without links. It looks at the mount table alone:
// a mount may come at any moment, and nobody answer it yet.
func notMounted(dir string) error {
	m, err := device.TopMount(dir)
	switch {
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case mounts.IsOurs(m):
		return fmt.Errorf("mount point %s: a kvfs daemon serves it already", dir)
	}
	return nil
}
