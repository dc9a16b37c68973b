package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mountOnce calls mount, which mounts at dir, while no other process of ours does so, and fails
// if one has done it since mountPoint looked: an attached mount may wait long for its owner
// before it mounts, and the lower of two would be one that nobody sees, nor can unmount.
func mountOnce(dir string, mount func() error) error {
	if err := notMounted(dir); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount point %s: %w", dir, err)
	}
	defer unix.Close(fd)
	for err = unix.EINTR; err == unix.EINTR; { // other errors: a file system without locks, where the look has to do
		err = unix.Flock(fd, unix.LOCK_EX)
	}
	if err := notMounted(dir); err != nil {
		return err
	}
	return mount()
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
