package mount

import (
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// wantOneLine fails unless a command failed with one line on its standard error
// that has all of want in it.
func wantOneLine(t testing.TB, stderr string, code int, want ...string) {
	t.Helper()
	if code == 0 {
		t.Error("exit code 0, want a failure")
	}
	line := strings.TrimSuffix(stderr, "\n")
	if line == "" || strings.Contains(line, "\n") {
		t.Errorf("standard error: got %q, want one line", stderr)
	}
	for _, w := range want {
		if !strings.Contains(line, w) {
			t.Errorf("standard error: got %q, want %q in it", line, w)
		}
	}
}

// TestMountedTwice shows that a second daemon takes neither the mount point nor
// the memory directory of a live one.
func TestMountedTwice(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{})
	store(t, d.Path("x"), pattern("x", mib))
	t.Run("same mount point", func(t *testing.T) {
		_, stderr, code := harness.Kvfs(t, "mount", "--memory-size", "64MiB", "--memory-dir", t.TempDir(), d.Dir)
		wantOneLine(t, stderr, code, d.Dir)
	})
	t.Run("same memory directory", func(t *testing.T) {
		_, stderr, code := harness.Kvfs(t, "mount", "--memory-size", "64MiB", "--memory-dir", d.MemoryDir, t.TempDir())
		waiting, last, _ := strings.Cut(stderr, "\n") // it says first what it waits for
		if !strings.Contains(waiting, "waiting for another kvfs process to end") {
			t.Errorf("it does not say that it waits: %q", waiting)
		}
		wantOneLine(t, last, code, d.MemoryDir)
	})
	wantBytes(t, d.Path("x"), pattern("x", mib))
	if got := len(harness.MountPoints(d.Dir)); got != 1 {
		t.Errorf("%d mounts at the mount point, want 1", got)
	}
}

// TestNoFuse runs TestNoFuseInside where there is no /dev/fuse.
func TestNoFuse(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	runInside(t, "TestNoFuseInside", "without")
}

func TestNoFuseInside(t *testing.T) {
	insideOnly(t)
	dir := t.TempDir()
	_, stderr, code := harness.Kvfs(t, "mount", "--memory-size", "64MiB", "--memory-dir", t.TempDir(), dir)
	wantOneLine(t, stderr, code, "/dev/fuse")
	if got := harness.MountPoints(dir); len(got) != 0 {
		t.Errorf("left mounted: %q", got)
	}
}
