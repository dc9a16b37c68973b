package mount

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestFaults gives the mount command faulty inputs: it fails with one clear
// line, and nothing is mounted.
func TestFaults(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	full := filepath.Join(dir, "full")
	good := filepath.Join(dir, "good")
	badConfig := filepath.Join(dir, "bad.yaml")
	must(t, "file", os.WriteFile(file, []byte("x"), 0o644))
	must(t, "file", os.WriteFile(badConfig, []byte("memory: {siez: 1GiB}\n"), 0o644))
	must(t, "mkdir", os.MkdirAll(full+"/something", 0o755))
	must(t, "mkdir", os.Mkdir(good, 0o755))
	memoryDir := []string{"--memory-dir", filepath.Join(dir, "memory")}
	memory := slices.Concat(memoryDir, []string{"--memory-size", "64MiB"})
	for _, f := range []struct {
		name string
		args []string
		want string
	}{
		{"mount point is a file", slices.Concat(memory, []string{file}), file},
		{"mount point is not empty", slices.Concat(memory, []string{full}), full},
		{"mount point's parent is missing", slices.Concat(memory, []string{dir + "/none/mnt"}), dir + "/none"},
		{"no mount point", memory, ""},
		{"two mount points", slices.Concat(memory, []string{good, full}), ""},
		{"capacity below one block", slices.Concat(memoryDir, []string{"--memory-size", "1KiB", good}), "memory"},
		{"capacity without unit", slices.Concat(memoryDir, []string{"--memory-size", "64", good}), "memory"},
		{"unknown flag", slices.Concat(memory, []string{"--no-such-flag", good}), "no-such-flag"},
		{"unknown configuration key", slices.Concat(memory, []string{"--config", badConfig, good}), "siez"},
		{"configuration file missing", slices.Concat(memory, []string{"--config", dir + "/none.yaml", good}), "none.yaml"},
		{"memory directory is a file", []string{"--memory-size", "64MiB", "--memory-dir", file, good}, file},
		{"NUMA node that is absent", slices.Concat(memory, []string{"--memory-numa", "bind:1023", good}), "bind:1023"},
		{"unknown policy", slices.Concat(memory, []string{"--memory-policy", "random", good}), "random"},
	} {
		t.Run(f.name, func(t *testing.T) {
			stdout, stderr, code := harness.Kvfs(t, append([]string{"mount"}, f.args...)...)
			wantOneLine(t, stderr, code, f.want)
			if stdout != "" {
				t.Errorf("standard output: %q", stdout)
			}
			if got := harness.MountPoints(dir); len(got) != 0 {
				t.Errorf("left mounted: %q", got)
				for _, p := range got {
					unix.Unmount(p, unix.MNT_DETACH)
				}
			}
		})
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
