package mount

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// asUser calls fn on a thread that accesses files as another user, without the rights of root.
func asUser(t testing.TB, uid, gid int, fn func()) {
	t.Helper()
	runtime.LockOSThread() // it may not end: a daemon that it started would
	defer runtime.UnlockOSThread()
	unix.Setfsgid(gid)
	unix.Setfsuid(uid)
	defer unix.Setfsgid(0)
	defer unix.Setfsuid(0)
	fn()
}

// privilegeOps change the bytes of a file.
var privilegeOps = map[string]func(path string) error{
	"write": func(p string) error {
		return withOpen(p, unix.O_WRONLY, func(fd int) error { _, err := unix.Write(fd, []byte("new")); return err })
	},
	"append": func(p string) error {
		return withOpen(p, unix.O_WRONLY|unix.O_APPEND, func(fd int) error { _, err := unix.Write(fd, []byte("new")); return err })
	},
	"truncate": func(p string) error { return unix.Truncate(p, 10) },
	"ftruncate": func(p string) error {
		return withOpen(p, unix.O_WRONLY, func(fd int) error { return unix.Ftruncate(fd, 5) })
	},
	"O_TRUNC": func(p string) error { return withOpen(p, unix.O_WRONLY|unix.O_TRUNC, nil) },
	"O_CREAT": func(p string) error { return withOpen(p, unix.O_WRONLY|unix.O_TRUNC|unix.O_CREAT, nil) },
	"fallocate": func(p string) error {
		return withOpen(p, unix.O_WRONLY, func(fd int) error { return unix.Fallocate(fd, 0, 0, 500) })
	},
}

func withOpen(path string, flags int, fn func(fd int) error) error {
	return again(func() error {
		fd, err := unix.Open(path, flags, 0o644)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if fn == nil {
			return nil
		}
		return fn(fd)
	})
}

// modes of TestPrivileges before and after a change by another user.
var privilegeModes = map[uint32]uint32{0o6777: 0o777, 0o4766: 0o766, 0o2776: 0o776, 0o1777: 0o1777}

// TestPrivileges shows that a user other than root who changes the bytes of a file takes its setuid and setgid bits away, that
// root does not, and that new entries of a directory with setgid get its group, as on other file systems.
func TestPrivileges(t *testing.T) {
	needRoot(t)
	for name, flags := range map[string][]string{"passthrough": nil, "no passthrough": {"--memory-passthrough", "off"}} {
		t.Run(name, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{Flags: flags})
			for what, op := range privilegeOps {
				for before, after := range privilegeModes {
					for _, kind := range []string{"", ".lock"} { // blocks, and plain files
						path := d.Path(what + kind)
						must(t, "write", os.WriteFile(path, make([]byte, 100), 0o600))
						must(t, "chmod", unix.Chmod(path, before))
						must(t, what+" as root", op(path))
						wantMode(t, what+kind+" as root", path, before)
						var err error
						asUser(t, 1000, 1000, func() { err = op(path) })
						must(t, what, err)
						wantMode(t, what+kind, path, after)
						must(t, "remove", os.Remove(path))
					}
				}
			}
			shared := d.Path("shared")
			must(t, "mkdir", os.Mkdir(shared, 0o700))
			must(t, "chown", unix.Chown(shared, 0, 77))
			must(t, "chmod", unix.Chmod(shared, 0o2777))
			asUser(t, 1000, 1000, func() {
				must(t, "mkdir", os.MkdirAll(filepath.Join(shared, "a/b"), 0o755))
				must(t, "write", os.WriteFile(filepath.Join(shared, "a/b/x"), []byte("x"), 0o644))
				must(t, "write", os.WriteFile(filepath.Join(shared, "y.tmp"), []byte("y"), 0o644))
				must(t, "mknod", unix.Mknod(filepath.Join(shared, "z"), unix.S_IFREG|0o644, 0))
			})
			for name, mode := range map[string]uint32{"a": 0o2755, "a/b": 0o2755, "a/b/x": 0o644, "y.tmp": 0o644, "z": 0o644} {
				var st unix.Stat_t
				path := filepath.Join(shared, name)
				must(t, "stat", unix.Stat(path, &st))
				if wantMode(t, name, path, mode); st.Uid != 1000 || st.Gid != 77 {
					t.Errorf("%s belongs to %d:%d, want 1000:77", name, st.Uid, st.Gid)
				}
			}
		})
	}
}

func wantMode(t testing.TB, what, path string, want uint32) {
	t.Helper()
	var st unix.Stat_t
	must(t, "stat", unix.Stat(path, &st))
	if got := st.Mode & 0o7777; got != want {
		t.Errorf("%s: mode %#o, want %#o", what, got, want)
	}
}
