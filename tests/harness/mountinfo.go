package harness

import (
	"errors"
	"os/exec"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// MountPoints returns the mount points at and below dir, in the order in which
// they were mounted. A mount point with several mounts is there several times.
func MountPoints(dir string) []string {
	var points []string
	for _, m := range mounts(dir) {
		points = append(points, m.Mountpoint)
	}
	return points
}

// FSType returns the type of the file system mounted at dir, or "".
func FSType(dir string) string {
	var fstype string
	for _, m := range mounts(dir) {
		if m.Mountpoint == dir {
			fstype = m.FSType
		}
	}
	return fstype
}

// mounts returns the mounts at and below dir.
func mounts(dir string) []*mountinfo.Info {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		panic(err)
	}
	return infos
}

// unmount detaches the topmost mount at dir, in use or not.
func unmount(dir string) {
	err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		exec.Command("fusermount3", "-u", "-z", dir).Run()
	}
}
