package device

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// detach unmounts dir lazily. If device is not 0 and the topmost mount at dir has another
// device, ours is gone or covered, and the other mount stays. For an ordinary user detach calls
// the set-uid helper of fuse, as mounting did.
func detach(dir string, device uint64) error {
	if device != 0 {
		if now, err := deviceAt(dir); err == nil && now != device {
			return nil
		}
	}
	err := unix.Unmount(dir, unix.MNT_DETACH)
	if err == nil || err == unix.EINVAL || err == unix.ENOENT {
		return nil
	}
	if err != unix.EPERM {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	out, err := exec.Command("fusermount3", "-u", "-z", "--", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3 -u -z %s: %w: %s", dir, err, out)
	}
	return nil
}

// TopMount returns the topmost mount at dir, a clean absolute path, or nil if there is none. It
// asks the mount table, not the mount.
func TopMount(dir string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false })
	if len(mounts) == 0 {
		return nil, err
	}
	return mounts[len(mounts)-1], nil // later ones lie on top
}

// deviceAt returns the device of TopMount, or 0 if there is none.
func deviceAt(dir string) (device uint64, err error) {
	m, err := TopMount(dir)
	if m == nil {
		return 0, err
	}
	return unix.Mkdev(uint32(m.Major), uint32(m.Minor)), nil
}
