package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// diskStatus returns the disk tier's part of the status.
func diskStatus(t testing.TB, d *harness.Daemon) harness.SecondaryStatus {
	t.Helper()
	return d.Status().Secondary(t, "disk")
}

func wantTier(t testing.TB, path, want string) {
	t.Helper()
	if got := tierOf(path); got != want {
		t.Errorf("tiers of %s: got %q, want %q", filepath.Base(path), got, want)
	}
}

// waitDrained waits until nothing waits to be stored on disk.
func waitDrained(t testing.TB, d *harness.Daemon) {
	t.Helper()
	harness.Poll(t, "the cascade has drained", func() bool {
		s := diskStatus(t, d)
		return s.QueuedBlocks == 0 && s.QueuedBytes == 0
	})
}

// evictMemory drops all blocks from memory that the disk holds too, and the
// pages that the kernel has of them.
func evictMemory(t testing.TB, d *harness.Daemon) {
	t.Helper()
	stdout, stderr, code := harness.Kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
	if code != 0 {
		t.Fatalf("kvfs evict: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// cold stores blocks and leaves them on disk only.
func cold(t testing.TB, d *harness.Daemon, blocks map[string][]byte) {
	t.Helper()
	for p, b := range blocks {
		must(t, "mkdir", os.MkdirAll(filepath.Dir(p), 0o755))
		store(t, p, b)
	}
	for p := range blocks {
		waitOnDisk(t, p)
	}
	evictMemory(t, d)
	for p := range blocks {
		wantTier(t, p, "disk")
	}
}

// coldOne is cold for one block whose bytes follow from its path.
func coldOne(t testing.TB, d *harness.Daemon, name string, n int) string {
	t.Helper()
	p := d.Path(name)
	cold(t, d, map[string][]byte{p: pattern(p, n)})
	return p
}

// diskSizes are sizes around everything that the format aligns to.
var diskSizes = []int{
	0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 65537, 100_001, 256 * kib, mib - 1, mib, mib + 28, 3*mib + 1, 4 * mib,
}

// sizedBlocks returns a block of each size below dir.
func sizedBlocks(dir string) map[string][]byte {
	blocks := make(map[string][]byte)
	for i, n := range diskSizes {
		p := filepath.Join(dir, fmt.Sprintf("group%d", i%3), fmt.Sprintf("%s-%d", hash64(i)[:16], n))
		blocks[p] = pattern(p, n)
	}
	return blocks
}

func wantBlocks(t testing.TB, blocks map[string][]byte) {
	t.Helper()
	for p, b := range blocks {
		wantBytes(t, p, b)
	}
}

// survey reads each block, which may be missing, but not wrong, and returns how
// many there are.
func survey(t testing.TB, blocks map[string][]byte) (found int) {
	t.Helper()
	for p, want := range blocks {
		got, err := readWhole(p)
		switch {
		case err == unix.ENOENT:
		case err != nil:
			t.Errorf("read %s: %s, want its bytes or ENOENT", filepath.Base(p), errnoName(err))
		default:
			found++
			sameBytes(t, filepath.Base(p), got, want)
		}
	}
	return found
}

// fsck checks a directory and returns what it printed; it fails the test unless
// the exit code is one of want.
func fsck(t testing.TB, dir string, repair bool, want ...int) string {
	t.Helper()
	args := []string{"fsck", dir}
	if repair {
		args = append(args, "--repair")
	}
	stdout, stderr, code := harness.Kvfs(t, args...)
	if !slices.Contains(want, code) {
		t.Errorf("kvfs %q: exit code %d, want one of %v\n%s%s", args, code, want, stdout, stderr)
	}
	if i := strings.Index(stderr, "panic: "); i >= 0 {
		t.Errorf("kvfs %q panics\n%s", args, stderr[i:])
	}
	return stdout + stderr
}

// parallel runs fn(0) to fn(n-1) at once and waits for all.
func parallel(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// writeAll stores blocks, and makes the directories above them.
func writeAll(t testing.TB, blocks map[string][]byte) {
	t.Helper()
	for p, b := range blocks {
		must(t, "mkdir", os.MkdirAll(filepath.Dir(p), 0o755))
		store(t, p, b)
	}
}

// numbered returns n blocks of size bytes in dir.
func numbered(dir string, n, size int) map[string][]byte {
	blocks := make(map[string][]byte, n)
	for i := range n {
		p := filepath.Join(dir, fmt.Sprintf("%04d", i))
		blocks[p] = pattern(p, size)
	}
	return blocks
}

func paths(blocks map[string][]byte) []string {
	var ps []string
	for p := range blocks {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	return ps
}

// roomInShm reports whether /dev/shm is in memory and takes n bytes more: in a
// container it is often small.
func roomInShm(n uint64) bool {
	var vfs unix.Statfs_t
	err := again(func() error { return unix.Statfs("/dev/shm", &vfs) })
	return err == nil && harness.FSType("/dev/shm") == "tmpfs" && vfs.Bavail*uint64(vfs.Bsize) >= n
}
