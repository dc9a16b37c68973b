package object

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestPackGone shows that one block of a pack that is gone from the bucket tells for all: the others are misses soon, and
// nobody has opened them. Blocks of other packs stay (G6).
func TestPackGone(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	good, bad := numbered("good", 5, 50_000), numbered("bad", 8, 50_000)
	cold(t, d, good)
	kept := packs(s)
	cold(t, d, bad)
	for _, name := range packs(s) {
		gone := true
		for _, k := range kept {
			gone = gone && k != name
		}
		if gone {
			s.Remove(prefix + "/" + name)
		}
	}
	for name := range bad { // now the kernel knows them all
		if _, err := os.Stat(d.Path(name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.ReadFile(d.Path("bad/0000")); !os.IsNotExist(err) {
		t.Errorf("a block of the pack: %v", err)
	}
	for name := range bad {
		harness.Poll(t, name+" is a miss", func() bool { _, err := os.Stat(d.Path(name)); return os.IsNotExist(err) })
	}
	wantBlocks(t, d, good)
}
