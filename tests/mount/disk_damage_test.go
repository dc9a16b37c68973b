package mount

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// flipOnDisk flips a bit in the middle of a block's copy on disk.
func flipOnDisk(t *testing.T, dir string, block []byte) {
	t.Helper()
	slabs, err := filepath.Glob(filepath.Join(dir, "slab-????????"))
	must(t, "glob", err)
	for _, slab := range slabs {
		b, err := os.ReadFile(slab)
		must(t, "read a slab", err)
		if at := bytes.Index(b, block); at >= 0 {
			flipAt(t, slab, int64(at+len(block)/2))
			return
		}
	}
	t.Fatalf("no slab in %s has the block", dir)
}

func flipAt(t *testing.T, file string, at int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, "open", err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	must(t, "read", err)
	b[0] ^= 4
	_, err = f.WriteAt(b[:], at)
	must(t, "write", err)
	must(t, "sync", f.Sync())
}

// TestDiskFsck damages a block and a superblock: fsck finds both and changes nothing, fsck --repair drops the block
// and no other, and refuses the directory of a daemon.
func TestDiskFsck(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "64MiB", Flags: []string{"--disk-slab-size", "4MiB"}})
	blocks := sizedBlocks(d.Dir)
	writeAll(t, blocks)
	waitOnDisk(t, paths(blocks)...)
	fsck(t, d.DiskDir, true, 8)
	d.Stop()
	fsck(t, d.DiskDir, true, 0)
	all := paths(blocks)
	bad := all[slices.IndexFunc(all, func(p string) bool { return strings.HasSuffix(p, "-100001") })]
	flipOnDisk(t, d.DiskDir, blocks[bad])
	flipAt(t, filepath.Join(d.DiskDir, "kvfs-disk"), 100)
	before := contents(t, d.DiskDir)
	wantInLog(t, fsck(t, d.DiskDir, false, 4), strings.TrimPrefix(bad, d.Dir+"/"))
	if contents(t, d.DiskDir) != before {
		t.Error("fsck without --repair changed the directory")
	}
	if stdout, _, _ := harness.Kvfs(t, "fsck", "--json", d.DiskDir); !strings.Contains(stdout, `"severity"`) || !strings.HasPrefix(stdout, "{") {
		t.Errorf("fsck --json: got %q", stdout)
	}
	fsck(t, d.DiskDir, true, 1)
	fsck(t, d.DiskDir, false, 0)
	d.Restart()
	wantAbsent(t, harness.Self(), bad)
	delete(blocks, bad)
	wantBlocks(t, blocks)
}

// contents returns names and checksums of all files.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range listNames(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, "read", err)
		all.WriteString(name + checksum(b))
	}
	return all.String()
}
