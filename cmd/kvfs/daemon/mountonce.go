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

// lockWait bounds how long mountOnce waits for another kvfs that mounts there: a mount takes less.
const lockWait = 5 * time.Second

// mountOnce calls mount, which mounts at dir, while no other kvfs does. It fails if another has
// mounted since mountPoint looked: an attached mount may wait long for its owner before it
// mounts. A second mount would hide the first, which could then not be unmounted.
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

// openUnmounted opens dir, but not a mount on it, which perhaps no process answers yet.
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
	// Another mount is there, or openat2(2) is missing (Linux before 5.6).
	if err := notMounted(dir); err != nil {
		return -1, err
	}
	return unix.Open(dir, flags, 0)
}

// tryLock locks the directory of fd. If that fails, because the file system has no locks or another program
// holds one, the check for a mount must suffice. It polls: the only call that waits for a lock cannot be ended.
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

// notMounted fails if a kvfs mount is at dir, an absolute path without links. It reads only the
// mount table: a new mount may have no process that answers yet.
func notMounted(dir string) error {
	m, err := device.TopMount(dir)
	switch {
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case mounts.IsOurs(m):
		return servedAlready(dir)
	}
	return nil
}
