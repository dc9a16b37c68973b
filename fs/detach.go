package fs

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// detach takes the mount at dir away, lazily: open handles go on. A directory
// that is not mounted is no error.
func detach(dir string) error {
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
