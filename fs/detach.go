package fs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// detach takes the mount at dir away, lazily. If device is not empty and the topmost mount there is
// of another one, ours is gone, or covered, and the other is not ours to take away. As an ordinary
// user that needs the set-uid helper of fuse, as mounting did.
func detach(dir, device string) error {
	if device != "" {
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

// escaped are the characters of paths that mount tables write in octal.
var escaped = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// deviceAt returns the device, major:minor, of the topmost mount at dir, which is a clean absolute
// path; "" if nothing is mounted there. It asks the mount table, not the mount.
func deviceAt(dir string) (device string, err error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	point := escaped.Replace(dir)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// id parent major:minor root point ...
		if field := strings.Fields(lines.Text()); len(field) > 4 && field[4] == point {
			device = field[2] // later ones lie on top
		}
	}
	return device, lines.Err()
}
