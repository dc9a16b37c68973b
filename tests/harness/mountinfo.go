package harness

import (
	"errors"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// MountPoints returns the mount points at and below dir, in the order in which
// they were mounted. A mount point with several mounts is there several times.
func MountPoints(dir string) []string {
	var points []string
	for p := range mounts() {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	return points
}

// FSType returns the type of the file system that is mounted at dir, or "" if
// none is.
func FSType(dir string) string {
	var fstype string
	for p, t := range mounts() {
		if p == dir {
			fstype = t
		}
	}
	return fstype
}

// mounts yields mount point and file-system type.
func mounts() func(yield func(string, string) bool) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	return func(yield func(string, string) bool) {
		for line := range strings.Lines(string(b)) {
			left, right, _ := strings.Cut(line, " - ")
			l, r := strings.Fields(left), strings.Fields(right)
			if len(l) < 5 || len(r) < 1 {
				continue
			}
			if !yield(unescape.Replace(l[4]), r[0]) {
				return
			}
		}
	}
}

// unmount detaches the topmost mount at dir, in use or not.
func unmount(dir string) {
	err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		exec.Command("fusermount3", "-u", "-z", dir).Run()
	}
}
