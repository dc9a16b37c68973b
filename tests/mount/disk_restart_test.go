package mount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskRestart shows that all names, sizes, modes, owners, times and
// directories are there after a restart before anything is read, and that the
// bytes are: after a clean stop, which frees the memory; after a crash; and
// after a crash that took the memory with it. What was removed stays removed
// (A11).
func TestDiskRestart(t *testing.T) {
	needRoot(t) // for chown
	for _, c := range []struct {
		name  string
		flags []string
		end   func(d *harness.Daemon)
	}{
		{"clean stop", nil, func(d *harness.Daemon) { d.Stop() }},
		{"clean stop that keeps memory", []string{"--memory-keep"}, func(d *harness.Daemon) { d.Stop() }},
		{"crash", nil, func(d *harness.Daemon) { d.Kill() }},
		{"crash with loss of memory", nil, func(d *harness.Daemon) { d.Kill(); d.DropMemory() }},
		{"stop, then loss of the index", nil, func(d *harness.Daemon) {
			d.Stop()
			os.Remove(filepath.Join(d.DiskDir, "kvfs-index"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := diskMount(t, harness.Options{Flags: c.flags})
			tree := plantTree(t, d)
			c.end(d)
			d.Restart()
			tree.check(t)
			if got := diskStatus(t, d); got.Promoted != 0 {
				t.Errorf("listing promoted %d blocks", got.Promoted)
			}
			wantBlocks(t, tree.blocks)
			d.Stop()
			fsck(t, d.DiskDir, false, 0)
			// Once more, now from a clean stop in any case.
			d.Restart()
			tree.check(t)
			wantBlocks(t, tree.blocks)
		})
	}
}

// plantedTree is what a mount holds, all of it on disk.
type plantedTree struct {
	d      *harness.Daemon
	blocks map[string][]byte
	stats  map[string]unix.Stat_t // of files and directories
	gone   []string
}

// plantTree makes files and directories with attributes of all kinds, waits
// until all is on disk, and removes some.
func plantTree(t *testing.T, d *harness.Daemon) *plantedTree {
	t.Helper()
	tree := &plantedTree{d: d, blocks: sizedBlocks(d.Path("deep", "er")), stats: make(map[string]unix.Stat_t)}
	tree.blocks[d.Path("top")] = pattern("top", 70_000)
	doomed := numbered(d.Path("gone"), 5, 100_000)
	must(t, "mkdir", os.MkdirAll(d.Path("deep", "er"), 0o755))
	must(t, "chmod", unix.Chmod(d.Path("deep"), 0o750))
	must(t, "chmod", unix.Chmod(d.Path("deep", "er"), unix.S_ISVTX|0o777))
	must(t, "chown", unix.Chown(d.Path("deep"), 4242, 4243))
	writeAll(t, tree.blocks)
	writeAll(t, doomed)
	must(t, "chown", unix.Chown(d.Path("top"), 17, 18))
	must(t, "chmod", unix.Chmod(d.Path("top"), 0o640))
	for i, p := range paths(tree.blocks) {
		setTimes(t, p, older, unix.Timespec{Sec: int64(1_000_000 + i), Nsec: 123_456_789})
	}
	waitOnDisk(t, paths(tree.blocks)...)
	waitOnDisk(t, paths(doomed)...)
	for p := range doomed {
		unlink(t, p)
		tree.gone = append(tree.gone, p)
	}
	moved := d.Path("deep", "moved")
	from := d.Path("top")
	rename(t, from, moved)
	tree.blocks[moved] = tree.blocks[from]
	delete(tree.blocks, from)
	tree.gone = append(tree.gone, from)
	for p := range tree.blocks {
		for ; p != d.Dir; p = filepath.Dir(p) {
			tree.stats[p] = stat(t, p)
		}
	}
	// A clean point: what was changed last is on its way to the disk, and a
	// crash that takes the memory may overtake it. This fsync may not.
	fsyncPath(t, moved)
	return tree
}

func fsyncPath(t testing.TB, p string) {
	t.Helper()
	f := open(t, p, unix.O_RDONLY, 0)
	must(t, "fsync "+filepath.Base(p), again(func() error { return unix.Fsync(f.fd) }))
	f.close()
}

// check compares names and attributes, without reading a byte.
func (tree *plantedTree) check(t *testing.T) {
	t.Helper()
	for p, want := range tree.stats {
		var st unix.Stat_t
		if err := again(func() error { return unix.Stat(p, &st) }); err != nil {
			t.Errorf("stat %s: %s", p[len(tree.d.Dir):], errnoName(err))
			continue
		}
		if st.Mode != want.Mode || st.Uid != want.Uid || st.Gid != want.Gid {
			t.Errorf("%s: mode %#o, owner %d:%d; want %#o, %d:%d", p[len(tree.d.Dir):], st.Mode, st.Uid, st.Gid, want.Mode, want.Uid, want.Gid)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && (st.Size != want.Size || st.Mtim != want.Mtim) {
			t.Errorf("%s: size %d, mtime %v; want %d, %v", p[len(tree.d.Dir):], st.Size, st.Mtim, want.Size, want.Mtim)
		}
	}
	var files []string
	must(t, "walk", filepath.WalkDir(tree.d.Dir, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, p)
		}
		return err
	}))
	slices.Sort(files)
	if want := paths(tree.blocks); !slices.Equal(files, want) {
		t.Errorf("files: got %q\nwant %q", files, want)
	}
	for _, p := range tree.gone {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there again: %v", p[len(tree.d.Dir):], err)
		}
	}
}
