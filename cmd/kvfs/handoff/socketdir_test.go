package handoff

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSocketDir shows where a socket may lie: in a directory that is the owner's alone (B30).
func TestSocketDir(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, base string) (path string)
		want string // "" for a place that is fine
	}{
		{"nothing there", func(t *testing.T, base string) string { return base + "/kvfs/0/s" }, ""},
		{"already there", func(t *testing.T, base string) string {
			return mkdir(t, base+"/d", 0o700) + "/s"
		}, ""},
		{"long path", func(t *testing.T, base string) string {
			return mkdir(t, base+"/"+strings.Repeat("d", 200), 0o700) + "/s"
		}, ""},
		{"sticky above", func(t *testing.T, base string) string {
			return mkdir(t, mkdir(t, base+"/tmp", 0o777|os.ModeSticky)+"/d", 0o700) + "/s"
		}, ""},
		{"two levels missing", func(t *testing.T, base string) string { return base + "/a/b/c/s" }, "no such file or directory"},
		{"others may read", func(t *testing.T, base string) string {
			return mkdir(t, base+"/d", 0o750) + "/s"
		}, "has mode 0750, want 0700"},
		{"all may write above", func(t *testing.T, base string) string {
			return mkdir(t, mkdir(t, base+"/open", 0o777)+"/d", 0o700) + "/s"
		}, "others may write to "},
		{"a symbolic link", func(t *testing.T, base string) string {
			mkdir(t, base+"/d", 0o700)
			must(t, os.Symlink("d", base+"/link"))
			return base + "/link/s"
		}, "is a symbolic link, or not a directory"},
		{"a file", func(t *testing.T, base string) string {
			must(t, os.WriteFile(base+"/d", nil, 0o600))
			return base + "/d/s"
		}, "is a symbolic link, or not a directory"},
		{"another user's", func(t *testing.T, base string) string {
			return chown(t, mkdir(t, base+"/d", 0o700)) + "/s"
		}, "belongs to uid 65534, want 0"},
		{"another user's above", func(t *testing.T, base string) string {
			dir := mkdir(t, mkdir(t, base+"/u", 0o755)+"/d", 0o700)
			chown(t, base+"/u")
			return dir + "/s"
		}, "belongs to uid 65534"},
		{"a file for a socket", func(t *testing.T, base string) string {
			path := mkdir(t, base+"/d", 0o700) + "/s"
			must(t, os.WriteFile(path, []byte("x"), 0o600))
			return path
		}, "exists and is not a socket"},
		{"a link for a lock", func(t *testing.T, base string) string {
			path := mkdir(t, base+"/d", 0o700) + "/s"
			must(t, os.Symlink("/etc/passwd", path+".lock"))
			return path
		}, "too many levels of symbolic links"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := c.make(t, t.TempDir())
			steady(t, func() {
				l, err := Listen(Options{Path: path})
				if c.want != "" {
					if err == nil || !strings.Contains(fmt.Sprint(err), c.want) {
						t.Errorf("got %v, want %q", err, c.want)
					}
					return
				}
				must(t, err)
				for name, want := range map[string]os.FileMode{path: 0o600 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
					if st, err := os.Lstat(name); err != nil || st.Mode() != want {
						t.Errorf("%s: %v, %v, want %v", name, st.Mode(), err, want)
					}
				}
				check(t, l.Close())
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the socket after Close: %v", err)
				}
			})
		})
	}
}

// mkdir makes a directory whatever the umask is.
func mkdir(t *testing.T, dir string, mode os.FileMode) string {
	t.Helper()
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Chmod(dir, mode))
	return dir
}

func chown(t *testing.T, name string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	must(t, os.Chown(name, 65534, 65534))
	return name
}

// TestSecondOwner shows that an owner that lives keeps its place, however the second one
// comes.
func TestSecondOwner(t *testing.T) {
	_, path := serve(t, &owner{}, Options{})
	steady(t, func() {
		if _, err := Listen(Options{Path: path}); !errors.Is(err, ErrServing) {
			t.Errorf("got %v", err)
		}
	})
	attach(t, path, "/mnt/a").Close()

	// One that ends meanwhile.
	first, err := Listen(Options{Path: mkdir(t, t.TempDir()+"/d", 0o700) + "/s"})
	must(t, err)
	second := make(chan error, 1)
	go func() { // ends when the first has ended
		l, err := Listen(Options{Path: first.Path(), lockTime: limit})
		if err == nil {
			err = l.Close()
		}
		second <- err
	}()
	check(t, first.Close())
	if err := <-second; err != nil {
		t.Errorf("the second owner: %v", err)
	}

	// One that holds no lock.
	other := mkdir(t, t.TempDir()+"/d", 0o700) + "/s"
	l, err := net.Listen(network, other)
	must(t, err)
	defer l.Close()
	if _, err := Listen(Options{Path: other}); !errors.Is(err, ErrServing) {
		t.Errorf("got %v", err)
	}
}

// TestStaleSocket shows that the socket of an owner that was killed is replaced.
func TestStaleSocket(t *testing.T) {
	path := mkdir(t, t.TempDir()+"/d", 0o700) + "/s"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	unix.Close(fd)
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoOwner) {
		t.Errorf("dial: %v", err)
	}
	serve(t, &owner{}, Options{Path: path})
	attach(t, path, "/mnt/a").Close()
}

// TestLongPath shows that a mount reaches a socket whose path is longer than the kernel takes.
func TestLongPath(t *testing.T) {
	path := filepath.Join(mkdir(t, filepath.Join(t.TempDir(), strings.Repeat("d", 150)), 0o700), "s")
	serve(t, &owner{}, Options{Path: path})
	attach(t, path, "/mnt/a").Close()
}

// TestDefaultPath shows that every user has a place of their own (B30).
func TestDefaultPath(t *testing.T) {
	if os.Geteuid() == 0 {
		if got := DefaultPath("/run/user/0"); got != "/run/kvfs/0/store.sock" {
			t.Errorf("got %q", got)
		}
		return
	}
	if got := DefaultPath("/run/user/7"); got != "/run/user/7/kvfs/store.sock" {
		t.Errorf("got %q", got)
	}
	if got := DefaultPath(""); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestOpenProc shows that the procfs that is handed over knows processes by the numbers that
// they have in the mount's pid name space, also where /proc is another one's.
func TestOpenProc(t *testing.T) {
	if os.Getenv("KVFS_STORE_TEST_PROC") != "" {
		proc, err := OpenProc()
		must(t, err)
		check(t, CheckProc(proc))
		name := fmt.Sprintf("/proc/self/fd/%d/1/task/%d", proc.Fd(), unix.Gettid())
		if _, err := os.Stat(name); err != nil || os.Getpid() != 1 {
			t.Errorf("pid %d is not known by its number: %v", os.Getpid(), err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a pid name space")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestOpenProc$", "-test.v")
	cmd.Env = append(os.Environ(), "KVFS_STORE_TEST_PROC=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPrivateTogether shows that processes which start together do not take each other's private sockets for those of dead ones.
func TestPrivateTogether(t *testing.T) {
	near := filepath.Join(t.TempDir(), "run", "store.sock")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { // ends after some tries
			for range 60 {
				p, err := ListenPrivate(near, "debug-", fmt.Sprint("debug-", i))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Lstat(p.Path()); err != nil {
					t.Errorf("the socket of a living process is gone: %v", err)
				}
				check(t, errors.Join(p.Close(), p.Remove()))
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(filepath.Dir(near)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestPrivateTaken shows that a process does not take the place of a living one that has the same name for its private socket:
// numbers of processes repeat in other PID namespaces, which may share the directory.
func TestPrivateTaken(t *testing.T) {
	near := filepath.Join(t.TempDir(), "run", "store.sock")
	first, err := ListenPrivate(near, "debug-", "debug-2")
	must(t, err)
	if second, err := ListenPrivate(near, "debug-", "debug-2"); !errors.Is(err, unix.EEXIST) {
		t.Errorf("the name is taken: %v", err)
		if err == nil {
			check(t, errors.Join(second.Close(), second.Remove()))
		}
	}
	c, err := net.Dial("unix", first.Path())
	if check(t, err); err == nil {
		c.Close()
	}
	check(t, errors.Join(first.Close(), first.Remove()))
	if left, err := os.ReadDir(filepath.Dir(near)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
