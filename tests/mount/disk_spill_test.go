package mount

import (
	"bytes"
	"fmt"
	"hash/crc64"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// spillBytes is how much goes through the small memory: 1 GiB, or in short tests
// a quarter of it.
func spillBytes() int64 {
	if testing.Short() || harness.RaceEnabled {
		return 256 * mib
	}
	return 1024 * mib
}

// TestDiskSpill writes 1 GiB of blocks through 64 MiB of memory with several
// writers and readers at once, then reads all of it back: no key fails, all
// checksums are equal (B35). Memory stays within its capacity all the time.
func TestDiskSpill(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "2GiB", MemorySize: "64MiB", Flags: []string{"--disk-cascade", "sync"}})
	const writers = 4
	n := int(spillBytes() / writers / (2 * mib))
	var done [writers]atomic.Int64
	path := func(w, i int) string { return d.Path(fmt.Sprintf("w%d", w), hash64(i)) }
	size := func(i int) int { return []int{mib, 2 * mib, 3 * mib, 2*mib - 100}[i%4] }
	stop := make(chan struct{})
	readersDone := make(chan struct{})
	var read, missed atomic.Int64
	go func() { // ends when stop is closed
		defer close(readersDone)
		parallel(3, func(r int) {
			src := rand.New(rand.NewPCG(uint64(r), 7))
			for {
				select {
				case <-stop:
					return
				default:
				}
				w := src.IntN(writers)
				if have := int(done[w].Load()); have > 0 {
					i := src.IntN(have)
					if !sameAsPattern(t, path(w, i), size(i)) {
						missed.Add(1)
					}
					read.Add(1)
				}
			}
		})
	}()
	parallel(writers, func(w int) {
		os.Mkdir(d.Path(fmt.Sprintf("w%d", w)), 0o755)
		for i := range n {
			p := path(w, i)
			if err := os.WriteFile(p+".tmp", pattern(p, size(i)), 0o644); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			if err := os.Rename(p+".tmp", p); err != nil {
				t.Errorf("rename: %v", err)
				return
			}
			done[w].Add(1)
		}
	})
	close(stop)
	<-readersDone
	if missed.Load() > 0 {
		t.Errorf("%d of %d reads during the writes missed", missed.Load(), read.Load())
	}
	if t.Failed() {
		t.Logf("status %+v", diskStatus(t, d))
		return
	}
	var bytesRead, failed atomic.Int64
	parallel(4, func(r int) {
		for i := r; i < n*writers; i += 4 {
			w, i := i%writers, i/writers
			if !sameAsPattern(t, path(w, i), size(i)) {
				failed.Add(1)
			}
			bytesRead.Add(int64(size(i)))
		}
	})
	s := d.Status()
	t.Logf("%d MiB written, %d reads meanwhile; then %d MiB read, %d keys failed; %+v",
		bytesRead.Load()/mib, read.Load(), bytesRead.Load()/mib, failed.Load(), s.Secondary(t, "disk"))
	if failed.Load() > 0 {
		t.Errorf("%d keys failed", failed.Load())
	}
	if m := s.Tier(t, "memory"); m.UsedBytes > m.CapacityBytes {
		t.Errorf("memory: %d bytes used of %d", m.UsedBytes, m.CapacityBytes)
	}
}

// sameAsPattern reports whether a block can be read. Its bytes must be right.
func sameAsPattern(t testing.TB, p string, n int) bool {
	got, err := readWhole(p)
	if err == unix.ENOENT {
		return false
	}
	if err != nil {
		t.Errorf("read %s: %s", filepath.Base(p), errnoName(err))
		return false
	}
	if want := pattern(p, n); crc64.Checksum(got, nvme) != crc64.Checksum(want, nvme) || !bytes.Equal(got, want) {
		t.Errorf("%s: %d wrong bytes", filepath.Base(p), len(got))
		return false
	}
	return true
}

// TestDiskFull writes more than memory and disk hold together: both keep to
// their capacities, the disk evicts, no store fails, and what can be read is
// right (A31, G4).
func TestDiskFull(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "64MiB", MemorySize: "64MiB", Flags: []string{"--disk-slab-size", "4MiB"}})
	blocks := numbered(d.Dir, 150, 2*mib)
	for _, p := range paths(blocks) {
		store(t, p, blocks[p])
		if s := d.Status().Tier(t, "disk"); s.UsedBytes > 64*mib {
			t.Fatalf("disk: %d bytes used of 64 MiB", s.UsedBytes)
		}
	}
	waitDrained(t, d)
	found := survey(t, blocks)
	s := diskStatus(t, d)
	t.Logf("%d of %d blocks are left; %+v", found, len(blocks), s)
	if found < 20 {
		t.Errorf("%d blocks of 2 MiB are left in 64 + 64 MiB", found)
	}
	if s.Evicted == 0 && s.SkippedNoSpace == 0 {
		t.Errorf("300 MiB in 64 MiB, and nothing was evicted or skipped: %+v", s)
	}
	var used int64
	slabs, _ := filepath.Glob(filepath.Join(d.DiskDir, "*"))
	for _, f := range slabs {
		st := stat(t, f)
		used += st.Blocks * 512
	}
	if used > 70*mib {
		t.Errorf("the directory takes %d bytes on disk, its size is 64 MiB: %s", used, strings.Join(slabs, " "))
	}
	d.Stop()
	fsck(t, d.DiskDir, false, 0)
}
