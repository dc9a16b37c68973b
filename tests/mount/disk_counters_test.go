package mount

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskSingleFlight opens one cold block from 20 readers at once: the disk is
// read once, and all get the bytes (A18).
func TestDiskSingleFlight(t *testing.T) {
	d := diskMount(t, harness.Options{})
	for round := range 5 {
		p := coldOne(t, d, fmt.Sprint("x", round), 4*mib)
		before := diskStatus(t, d)
		gate := make(chan struct{})
		go close(gate)
		parallel(20, func(int) {
			<-gate
			got, err := readWhole(p)
			if err != nil {
				t.Errorf("read: %s", errnoName(err))
				return
			}
			sameBytes(t, filepath.Base(p), got, pattern(p, 4*mib))
		})
		after := diskStatus(t, d)
		if after.Promoted-before.Promoted != 1 || after.Loaded-before.Loaded != 1 {
			t.Errorf("20 readers: %d promotions, %d loads, want 1 of each", after.Promoted-before.Promoted, after.Loaded-before.Loaded)
		}
	}
}

// TestDiskNonblock opens cold blocks with O_NONBLOCK: the answer is the block or
// EAGAIN while it is on its way, never that there is none (A15).
func TestDiskNonblock(t *testing.T) {
	d := diskMount(t, harness.Options{})
	blocks := numbered(d.Dir, 8, 4*mib)
	cold(t, d, blocks)
	for p, want := range blocks {
		var f *file
		harness.Poll(t, "O_NONBLOCK open succeeds", func() bool {
			var err error
			f, err = tryOpen(t, p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil && err != unix.EAGAIN {
				t.Fatalf("open with O_NONBLOCK: %s, want EAGAIN or success", errnoName(err))
			}
			return err == nil
		})
		sameBytes(t, filepath.Base(p), f.pread(4*mib, 0), want)
		f.close()
	}
	_, err := tryOpen(t, d.Path("none"), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	wantErrno(t, "open of a miss with O_NONBLOCK", err, unix.ENOENT)
}

// TestDiskBiggerThanStaging shows blocks above the staging area, above the slab
// size and above what is left of memory: they work or are a clear miss (issue:
// "blocks bigger than memory or staging"; B16).
func TestDiskBiggerThanStaging(t *testing.T) {
	d := diskMount(t, harness.Options{MemorySize: "128MiB", Flags: []string{"--staging-size", "2MiB", "--disk-slab-size", "4MiB"}})
	for _, n := range []int{64 * kib, mib, mib + 1, 2 * mib, 3*mib + 333, 8 * mib, 40*mib + 1} {
		p := d.Path(fmt.Sprint(n))
		store(t, p, pattern(p, n))
		waitDrained(t, d)
		harness.Kvfs(t, "evict", "--tier", "memory", p)
		got := tierOf(p)
		t.Logf("%d bytes: on %s", n, got)
		if got != "disk" && got != "memory" {
			t.Errorf("%d bytes: tiers %q, want it on disk, or in memory only because it does not fit", n, got)
		}
		if n <= mib && got != "disk" {
			t.Errorf("%d bytes: tiers %q, want disk: it fits the staging area", n, got)
		}
		wantBytes(t, p, pattern(p, n))
		if got == "memory" {
			s := diskStatus(t, d)
			if s.CascadeSkipped+s.CascadeFailed+s.SkippedNoSpace == 0 {
				t.Errorf("%d bytes were not stored, and nothing counts it: %+v", n, s)
			}
		}
	}
}

// TestDiskTierSummary shows the tier log: one line a batch with all fields, which
// add up to what was done (B7, B20, E15).
func TestDiskTierSummary(t *testing.T) {
	d := diskMount(t, harness.Options{Flags: []string{"--log-tier-summary"}})
	blocks := numbered(d.Dir, 12, 256*kib)
	cold(t, d, blocks)
	wantBlocks(t, blocks)
	wantBlocks(t, blocks)
	_, err := readWhole(d.Path("none"))
	wantErrno(t, "read of a miss", err, unix.ENOENT)
	fields := []string{"memory_keys", "disk_keys", "peer_keys", "unknown_keys", "success_keys", "failed_keys", "bytes_by_tier"}
	harness.Poll(t, "the log has the tier summary of all 12 keys", func() bool {
		var keys, bytes float64
		for line := range strings.Lines(d.Log()) {
			_, doc, found := strings.Cut(line, "{")
			if !found || !strings.Contains(line, "disk_keys") {
				continue
			}
			var m map[string]any
			if json.Unmarshal([]byte("{"+doc), &m) != nil {
				continue
			}
			for _, f := range fields {
				if _, ok := m[f]; !ok {
					t.Fatalf("tier summary without %s: %s", f, line)
				}
			}
			n, _ := m["disk_keys"].(float64)
			keys += n
			if by, ok := m["bytes_by_tier"].(map[string]any); ok {
				n, _ := by["disk"].(float64)
				bytes += n
			}
		}
		return keys == 12 && bytes == 12*256*kib
	})
}
