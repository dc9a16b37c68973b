package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskNotMounted starts a daemon while the file system of its SSD directory is not mounted, or another
// one is mounted in its place. The daemon refuses, says what to do, and makes nothing there. On its own
// file system it starts with its blocks, also if the device has another number by then (H8).
func TestDiskNotMounted(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			l := harness.MountLoop(t, harness.LoopOptions{Type: fstype})
			dir := filepath.Join(l.Dir, "kvfs")
			d := diskMount(t, harness.Options{Disk: "64MiB", DiskDir: dir, MayFail: true})
			blocks := numbered(d.Dir, 4, mib)
			writeAll(t, blocks)
			waitDrained(t, d)
			d.Stop()

			l.Unmount()
			refuses(t, d, "Mount it: mount "+l.Dir, "--disk-require-mount=false")
			if names, err := os.ReadDir(l.Dir); err != nil || len(names) > 0 {
				t.Errorf("below the mount point there are %v (%v), want nothing", names, err)
			}
			other := harness.MountLoop(t, harness.LoopOptions{Type: fstype}) // takes the loop device, too
			must(t, "bind", unix.Mount(other.Dir, l.Dir, "", unix.MS_BIND, ""))
			refuses(t, d, "is on another file system", "--disk-require-mount=false")
			must(t, "unmount", unix.Unmount(l.Dir, 0))

			l.Mount()
			if !d.TryRestart() {
				t.Fatalf("on its own file system, at %s:\n%s", l.Device, d.LastLog())
			}
			wantBlocks(t, blocks)
			d.Stop()

			// It moves for good.
			l.Unmount()
			must(t, "bind", unix.Mount(other.Dir, l.Dir, "", unix.MS_BIND, ""))
			opts := harness.Options{Disk: "64MiB", MayFail: true, Flags: []string{"--disk-require-mount", "false"}}
			d.RestartWith(opts)
			d.Stop()
			opts.Flags = nil
			d.RestartWith(opts)
			if !d.Running() {
				t.Errorf("where it was let move to:\n%s", d.LastLog())
			}
			d.Stop()
			must(t, "unmount", unix.Unmount(l.Dir, 0))
		})
	}
}

// refuses shows that a daemon does not start, and that the reason has all texts.
func refuses(t *testing.T, d *harness.Daemon, texts ...string) {
	t.Helper()
	if d.TryRestart() {
		t.Errorf("started:\n%s", d.LastLog())
		d.Stop()
		return
	}
	for _, text := range texts {
		if !strings.Contains(d.LastLog(), text) {
			t.Errorf("%q is not in:\n%s", text, d.LastLog())
		}
	}
}
