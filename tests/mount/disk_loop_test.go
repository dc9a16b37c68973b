package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// diskFileSystems are those that the disk tier is tested on.
var diskFileSystems = []struct {
	name   string
	fstype string
	sector int
}{
	{"ext4", "ext4", 512},
	{"xfs with 512-byte sectors", "xfs", 512},
	{"xfs with 4096-byte sectors", "xfs", 4096},
	{"btrfs", "btrfs", 512},
}

// TestDiskFileSystems runs the way of a block, with both I/O engines, a crash,
// an unmount of the file system and a check, on real file systems.
func TestDiskFileSystems(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	for _, fs := range diskFileSystems {
		t.Run(fs.name, func(t *testing.T) {
			l := harness.MountLoop(t, harness.LoopOptions{Type: fs.fstype, SectorBytes: fs.sector})
			for _, engine := range []string{"auto", "pread"} {
				t.Run(engine, func(t *testing.T) {
					dir := filepath.Join(l.Dir, engine)
					must(t, "mkdir", os.Mkdir(dir, 0o755))
					onFileSystem(t, l, dir, engine)
				})
			}
		})
	}
}

func onFileSystem(t *testing.T, l *harness.LoopFS, dir, engine string) {
	d := diskMount(t, harness.Options{
		Disk: "128MiB", DiskDir: dir, Flags: []string{"--disk-slab-size", "8MiB", "--directio-engine", engine},
	})
	blocks := sizedBlocks(d.Dir)
	cold(t, d, blocks)
	l.DropCaches()
	wantBlocks(t, blocks)
	crashAll(d)
	wantBlocks(t, blocks)
	if s := d.Status().Tier(t, "disk"); s.State != "online" {
		t.Errorf("state %s: %s", s.State, s.Reason)
	}
	d.Stop()
	l.Remount()
	fsck(t, dir, false, 0)
	d.Restart()
	wantBlocks(t, blocks)
	d.Stop()
}

// TestDiskLargerThanFileSystem gives the SSD tier a size above the room of its file system. The daemon warns, and
// status and df show the size that there is.
func TestDiskLargerThanFileSystem(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	l := harness.MountLoop(t, harness.LoopOptions{SizeBytes: 160 * mib})
	d := diskMount(t, harness.Options{Disk: "1TiB", DiskDir: l.Dir, Flags: []string{"--disk-slab-size", "4MiB"}})
	if got := d.Status().Tier(t, "disk").CapacityBytes; got > 160*mib || got < 64*mib {
		t.Errorf("capacity in status: %d MiB, want at most the 160 of the device", got/mib)
	}
	var st unix.Statfs_t
	must(t, "statfs", unix.Statfs(d.Dir, &st))
	if got := int64(st.Blocks) * st.Bsize; got > 1024*mib {
		t.Errorf("df: %d MiB", got/mib)
	}
	if !strings.Contains(d.Log(), "more than its file system has room for") {
		t.Errorf("no warning:\n%s", d.Log())
	}
}
