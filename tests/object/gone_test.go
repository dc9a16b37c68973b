package object

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestPackGone shows that one block of a pack that is gone from the bucket tells for all: the others are misses soon, and
// nobody has opened them. Blocks of other packs stay (G6).
func TestPackGone(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	good := numbered("good", 5, 50_000)
	cold(t, d, good)
	kept := packs(s)
	var bad blocks
	var pack string // with all of bad: on a busy machine they may be in two
	for try := 0; pack == ""; try++ {
		bad = numbered(fmt.Sprint("bad", try), 8, 50_000)
		cold(t, d, bad)
		added := slices.DeleteFunc(packs(s), func(name string) bool { return slices.Contains(kept, name) })
		if kept = append(kept, added...); len(added) == 1 {
			pack = added[0]
		}
	}
	s.Remove(prefix + "/" + pack)
	for name := range bad { // now the kernel knows them all
		if _, err := os.Stat(d.Path(name)); err != nil {
			t.Error(err)
		}
	}
	for name := range bad {
		if _, err := os.ReadFile(d.Path(name)); !os.IsNotExist(err) {
			t.Errorf("a block of the pack: %v", err)
		}
		break
	}
	for name := range bad {
		harness.Poll(t, name+" is a miss", func() bool { _, err := os.Stat(d.Path(name)); return os.IsNotExist(err) })
	}
	wantBlocks(t, d, good)
}
