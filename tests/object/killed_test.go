package object

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// TestKilled kills daemons in the middle of uploads. Every object in the bucket is a whole one, and the next daemon has each
// block exactly or not at all. What the bucket had before is there (G6).
func TestKilled(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	all := numbered("before", 10, 20_000)
	storeAll(t, d, all)
	waitStored(t, d, all)
	for round, size := range []int{100_000, 5 * mib, 700_000} {
		bs := numbered(fmt.Sprintf("round%d", round), min(200, 40*mib/size), size)
		var writers sync.WaitGroup
		seen := len(packs(s))
		writers.Go(func() { // ends with the daemon, if not before
			for name, b := range bs {
				if os.MkdirAll(filepath.Dir(d.Path(name)), 0o755) != nil || os.WriteFile(d.Path(name), b, 0o644) != nil {
					return
				}
			}
		})
		harness.Poll(t, "an upload in the round", func() bool { return len(packs(s)) > seen })
		d.Kill()
		writers.Wait()
		d.DropMemory()
		verify(t, s)
		for name, b := range bs {
			all[name] = b
		}
		d.Restart()
		waitListed(t, d)
		found := survey(t, d, all)
		t.Logf("round %d: %d of %d blocks", round, found, len(all))
		if found < 10 {
			t.Fatalf("only %d blocks are left, want at least the 10 from before", found)
		}
	}
}

// packs returns the names of the packs in the bucket.
func packs(s *s3test.Server) []string {
	return slices.DeleteFunc(s.Names(prefix), func(name string) bool { return !strings.HasSuffix(name, ".pack") })
}

// verify checks each pack in the bucket, and that there is nothing else but tombstones, and what a probe may leave.
func verify(t testing.TB, s *s3test.Server) {
	t.Helper()
	for _, object := range s.Names(prefix) {
		name, ok := pack.ParseName(object)
		if !ok && object != ".probe" {
			t.Errorf("the bucket has an object %q", object)
		}
		if strings.HasSuffix(object, ".pack") {
			data := s.Get(prefix + "/" + object)
			must(t, "verify "+object, pack.Verify(bytes.NewReader(data), name, int64(len(data)), func(e *pack.Entry, err error) bool {
				if err != nil {
					t.Errorf("%s in %s: %v", e.Path, name, err)
				}
				return true
			}))
		}
	}
}
