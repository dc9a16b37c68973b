package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Some tests need another /dev than the machine's: one without fuse, or one
// where fuse is open to all users, as on a desktop. They run in a second test
// process in a mount namespace of its own.

const insideEnv = "KVFS_TEST_INSIDE"

// insideOnly skips a test that only runInside starts.
func insideOnly(t *testing.T) {
	t.Helper()
	if os.Getenv(insideEnv) == "" {
		t.Skip("run by its outer test")
	}
}

// runInside runs the test of that name in a mount namespace whose /dev is "with"
// or "without" /dev/fuse.
func runInside(t *testing.T, name, fuse string) {
	t.Helper()
	needRoot(t)
	harness.NeedFuse(t)
	stdout, stderr, code := harness.RunHelper(t, harness.ProcessOptions{
		Unshare: unix.CLONE_NEWNS,
		Env:     []string{insideEnv + "=1", "KVFS_BIN=" + harness.Binary(t)},
	}, "private-dev", fuse, name, fmt.Sprint(testing.Short()))
	if code == privateDevDenied {
		harness.Skip(t, "no mount namespaces: %s", strings.TrimSpace(stderr))
	}
	t.Logf("%s%s", stdout, stderr)
	if code != 0 {
		t.Errorf("%s failed inside, exit code %d", name, code)
	}
}

const privateDevDenied = 77

// privateDev makes a /dev and becomes the test process. args are "with" or
// "without", the test's name, and whether the run is short.
func privateDev(args []string) int {
	if err := makeDev(args[0] == "with"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return privateDevDenied
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "KVFS_TEST_HELPER=")
	})
	err := unix.Exec("/proc/self/exe", []string{"inside.test", "-test.v", "-test.run=^" + args[1] + "$", "-test.short=" + args[2]}, env)
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func makeDev(fuse bool) error {
	stage, err := os.MkdirTemp("", "dev") // reason: it has a mount in this name space alone
	if err != nil {
		return err
	}
	defer os.Remove(stage)
	if err := unix.Mount("dev", stage, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	unix.Umask(0)
	defer unix.Umask(0o022)
	nodes := map[string]uint64{
		"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
		"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9),
	}
	if fuse {
		nodes["fuse"] = unix.Mkdev(10, 229)
	}
	for name, dev := range nodes {
		if err := unix.Mknod(filepath.Join(stage, name), unix.S_IFCHR|0o666, int(dev)); err != nil {
			return fmt.Errorf("mknod %s: %w", name, err)
		}
	}
	if err := os.Symlink("/proc/self/fd", filepath.Join(stage, "fd")); err != nil {
		return err
	}
	shm := filepath.Join(stage, "shm")
	if err := os.Mkdir(shm, 0o777); err != nil {
		return err
	}
	if err := unix.Mount("/dev/shm", shm, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /dev/shm: %w", err)
	}
	if err := unix.Mount(stage, "/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move to /dev: %w", err)
	}
	return nil
}
