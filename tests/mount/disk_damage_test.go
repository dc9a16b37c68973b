package mount

import (
	"hash/crc64"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// plate is a directory of a disk tier to be copied and damaged: after a clean
// stop, or after a crash, so that recovery has no index.
type plate struct {
	dir    string
	blocks map[string][]byte // by path below the mount
	keys   []string          // sorted
}

var damageOptions = harness.Options{Disk: "64MiB", Flags: []string{"--disk-slab-size", "4MiB"}}

// fastDisk returns a directory for many short-lived disk tiers: on a file system in
// memory, where possible, because a sync of a disk costs more than all the rest.
func fastDisk(t *testing.T) string {
	t.Helper()
	const size = 2048 * mib
	if harness.LacksLoop("ext4") != "" || !roomInShm(size) {
		return harness.NewDiskDir(t, nil)
	}
	return harness.MountLoop(t, harness.LoopOptions{SizeBytes: size, Backing: shmDir(t)}).Dir
}

// roomInShm reports whether /dev/shm is in memory and takes n bytes more: in a
// container it is often small.
func roomInShm(n uint64) bool {
	var vfs unix.Statfs_t
	err := again(func() error { return unix.Statfs("/dev/shm", &vfs) })
	return err == nil && harness.FSType("/dev/shm") == "tmpfs" && vfs.Bavail*uint64(vfs.Bsize) >= n
}

// newDir makes a directory in parent that is removed with the test.
func newDir(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "tier")
	must(t, "mkdir", err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// makePlate fills a directory in parent with blocks of many sizes.
func makePlate(t *testing.T, parent string, crash bool) *plate {
	t.Helper()
	opts := damageOptions
	opts.DiskDir = newDir(t, parent)
	d := diskMount(t, opts)
	store(t, d.Path("early"), pattern("early", 20_000))
	waitOnDisk(t, d.Path("early"))
	d.Restart()
	p := &plate{dir: d.DiskDir, blocks: make(map[string][]byte)}
	unlink(t, d.Path("early"))
	for _, base := range []int{1, 20_000, 70_000, 200_000} {
		for i := range 8 {
			key := filepath.Join("group", hash64(base + i)[:12])
			p.blocks[key] = pattern(key, base+i*7)
		}
	}
	writeAll(t, p.at(d))
	waitOnDisk(t, paths(p.at(d))...)
	p.keys = paths(p.blocks)
	if !crash {
		d.Stop()
		return p
	}
	for path := range p.at(d) {
		fsyncPath(t, path)
	}
	d.Kill()
	return p
}

// at returns the blocks by their paths in a mount.
func (p *plate) at(d *harness.Daemon) map[string][]byte {
	blocks := make(map[string][]byte)
	for key, b := range p.blocks {
		blocks[d.Path(key)] = b
	}
	return blocks
}

// damage is a way to damage a directory.
type damage struct {
	name string
	do   func(t *testing.T, h *hurt)
}

// hurt is a copy of a plate with damage, and what that may cost.
type hurt struct {
	*diskImage
	*plate
	crash bool
	rnd   *rand.Rand

	lost   []string // keys that may be missing now
	harm   bool     // fsck must find something
	refuse bool     // the daemon may refuse to start, until fsck has repaired it
	stays  bool     // not even fsck can help
	later  bool     // it is of a later version
}

// flip changes one to three bits in n random bytes of a file from off on.
func (h *hurt) flip(t *testing.T, file string, off, length int64, n int) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range n {
		at := off + h.rnd.Int64N(length)
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		old := b[0]
		for b[0] == old {
			b[0] ^= 1 << h.rnd.IntN(8)
		}
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		t.Logf("flipped %s at %d: %#02x, was %#02x", filepath.Base(file), at, b[0], old)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// change rewrites n bytes of a file at off.
func (h *hurt) change(t *testing.T, file string, off int64, n int, fn func(b []byte)) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	fn(b)
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// some returns the slot of a random block of at least 20,000 bytes.
func (h *hurt) some(t *testing.T) diskSlot {
	for {
		s := h.of(t, h.keys[h.rnd.IntN(len(h.keys))])
		if s.size >= 20_000 {
			return s
		}
	}
}

func (h *hurt) file(name string) string { return filepath.Join(h.diskImage.dir, name) }

// TestDiskDamage damages a directory in every way, and starts a daemon on it,
// and repairs it and starts another: no byte that is read is ever wrong, blocks
// that were not hit are there, nothing panics or hangs, stores work, and fsck
// finds the damage and repairs it.
func TestDiskDamage(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	rnd := newRand(t)
	disk := fastDisk(t)
	for _, crash := range []bool{false, true} {
		name := "after a clean stop"
		if crash {
			name = "after a crash"
		}
		if !crash && (testing.Short() || harness.RaceEnabled) {
			continue // every case starts half a dozen processes
		}
		t.Run(name, func(t *testing.T) {
			p := makePlate(t, disk, crash)
			for i, c := range damages {
				seed := rnd.Uint64()
				if testing.Short() && (uint64(i)+seed)%2 == 0 {
					continue // another half each time
				}
				t.Run(c.name, func(t *testing.T) {
					t.Parallel() // most of a case is waiting for processes
					hit := func() *hurt {
						dir := newDir(t, disk)
						harness.CopyDir(t, p.dir, dir)
						h := &hurt{diskImage: readImage(t, dir), plate: p, crash: crash, rnd: rand.New(rand.NewPCG(seed, 0))}
						c.do(t, h)
						return h
					}
					h := hit()
					serveHurt(t, h)
					if !h.later {
						repairHurt(t, hit())
					}
				})
			}
		})
	}
}

// serveHurt starts a daemon on the damage as it is.
func serveHurt(t *testing.T, h *hurt) {
	dir := h.diskImage.dir
	switch {
	case h.later:
		out := fsck(t, dir, false, 8)
		wantInLog(t, out, "version 2")
		out = fsck(t, dir, true, 8)
		wantInLog(t, out, "version 2")
	case h.harm:
		fsck(t, dir, false, 4)
	case len(h.lost) == 0:
		fsck(t, dir, false, 0)
	}
	opts := damageOptions
	opts.DiskDir, opts.MayFail = dir, true
	d := harness.Mount(t, opts)
	if !d.Running() {
		wantRefusal(t, d)
		switch {
		case h.later:
			wantInLog(t, d.LastLog(), "version 2", "1")
		case !h.refuse:
			t.Errorf("the daemon refuses a directory that it ought to serve:\n%s", d.LastLog())
		}
		return
	}
	if h.later {
		t.Error("the daemon serves a directory of a later version")
	}
	h.check(t, d)
	d.Stop()
	if !h.stays {
		fsck(t, dir, true, 0, 1)
		fsck(t, dir, false, 0)
	}
}

// repairHurt repairs the damage before a daemon starts on it.
func repairHurt(t *testing.T, h *hurt) {
	dir := h.diskImage.dir
	switch {
	case h.stays:
		fsck(t, dir, true, 0, 1, 4, 8)
	case h.harm:
		fsck(t, dir, true, 1)
		fsck(t, dir, false, 0)
	default:
		fsck(t, dir, true, 0, 1)
		fsck(t, dir, false, 0)
	}
	opts := damageOptions
	opts.DiskDir, opts.MayFail = dir, h.stays && h.refuse
	d := harness.Mount(t, opts)
	if !d.Running() {
		wantRefusal(t, d)
		return
	}
	h.check(t, d)
}

// check reads all blocks and stores others.
func (h *hurt) check(t *testing.T, d *harness.Daemon) {
	t.Helper()
	var missing []string
	for _, key := range h.keys {
		got, err := readWhole(d.Path(key))
		switch {
		case err == unix.ENOENT:
			missing = append(missing, key)
		case err != nil:
			t.Errorf("read %s: %s", key, errnoName(err))
		default:
			sameBytes(t, key, got, h.blocks[key])
		}
	}
	for _, key := range missing {
		if !slices.Contains(h.lost, key) {
			t.Errorf("%s is missing, but was not damaged", key)
		}
	}
	t.Logf("%d of %d missing, up to %d may be", len(missing), len(h.keys), len(h.lost))
	wantAbsent(t, harness.Self(), d.Path("early"))
	more := numbered(d.Path("more"), 10, 150_000)
	writeAll(t, more)
	// What is missing can be stored again.
	for _, key := range missing {
		must(t, "mkdir", os.MkdirAll(filepath.Dir(d.Path(key)), 0o755))
		store(t, d.Path(key), h.blocks[key])
	}
	waitDrained(t, d)
	evictMemory(t, d)
	wantBlocks(t, more)
	wantBlocks(t, h.at(d))
	if _, err := os.Stat(h.file("README")); err == nil && string(readAll(t, h.file("README"))) != "not ours" {
		t.Error("a foreign file was changed")
	}
}

// TestDiskFsckReadsOnly shows that fsck without --repair changes nothing.
func TestDiskFsckReadsOnly(t *testing.T) {
	disk := fastDisk(t)
	p := makePlate(t, disk, false)
	dir := newDir(t, disk)
	harness.CopyDir(t, p.dir, dir)
	h := &hurt{diskImage: readImage(t, dir), plate: p, rnd: newRand(t)}
	s := h.some(t)
	h.flip(t, s.file, s.data, s.size, 1)
	h.flip(t, h.file("kvfs-disk"), 0, 4088, 1)
	before := contents(t, dir)
	out := fsck(t, dir, false, 4)
	wantInLog(t, out, s.key)
	if after := contents(t, dir); after != before {
		t.Error("fsck without --repair changed the directory")
	}
	_, _, code := harness.Kvfs(t, "fsck", "--no-data", dir)
	if code != 4 {
		t.Errorf("fsck --no-data: exit code %d, want 4 for the superblock", code)
	}
	stdout, _, _ := harness.Kvfs(t, "fsck", "--json", dir)
	if !strings.Contains(stdout, `"severity"`) || !strings.HasPrefix(stdout, "{") {
		t.Errorf("fsck --json: got %q", stdout)
	}
}

// contents returns names and checksums of all files.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	for _, name := range listNames(t, dir) {
		b.WriteString(name)
		b.Write(le.AppendUint64(nil, crc64.Checksum(readAll(t, filepath.Join(dir, name)), nvme)))
	}
	return b.String()
}
