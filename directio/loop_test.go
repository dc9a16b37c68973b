package directio

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// mountLoop makes a file system of sizeBytes on a loop device with the given logical
// sector and mounts it until the test ends. It returns the mount point and the
// backing file. The test is skipped where that cannot be done.
func mountLoop(t *testing.T, fstype string, sizeBytes int64, sector int, backingDir string) (dir, backing string) {
	t.Helper()
	needRoot(t, "loop devices")
	for _, tool := range []string{"losetup", "mkfs." + fstype} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if backingDir == "" {
		backingDir = t.TempDir()
	}
	backing = filepath.Join(backingDir, "backing")
	f, err := os.Create(backing)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(sizeBytes))
	out, err := exec.Command("losetup", "--find", "--show", "--sector-size", strconv.Itoa(sector), backing).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	dev := string(bytes.TrimSpace(out))
	t.Cleanup(func() { run(t, "losetup", "--detach", dev) })
	args := map[string][]string{"ext4": {"-q", "-F", "-m", "0"}, "xfs": {"-q", "-f"}}[fstype]
	run(t, "mkfs."+fstype, append(args, dev)...)
	dir = t.TempDir()
	if err := unix.Mount(dev, dir, fstype, 0, ""); err != nil {
		t.Skipf("this kernel has no %s: %v", fstype, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir, backing
}

// mountTmpfs mounts a tmpfs until the test ends.
func mountTmpfs(t testing.TB, options string) string {
	t.Helper()
	needRoot(t, "mounting")
	dir := t.TempDir()
	if err := unix.Mount("kvfs-test", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no tmpfs with %q: %v", options, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

func needRoot(t testing.TB, what string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip(what + " needs root")
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

const childEnv = "KVFS_DIRECTIO_TEST_CHILD"

// inChild runs the current test once more, alone, in a process of its own, where it
// calls child, and fails as that does.
func inChild(t *testing.T, child func(*testing.T)) {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		child(t)
		return
	}
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	// The race detector sleeps a second at exit otherwise.
	cmd.Env = append(os.Environ(), childEnv+"=1", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("child: %v\n%s", err, out)
	}
	if skip := fmt.Appendf(nil, "--- SKIP: %s ", t.Name()); bytes.Contains(out, skip) {
		t.Skipf("child skipped:\n%s", out)
	}
	if !bytes.Contains(out, fmt.Appendf(nil, "--- PASS: %s ", t.Name())) {
		t.Errorf("child did not run the test:\n%s", out)
	}
}
