package disk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestCheckOfTier: what a tier leaves is without errors, closed or not, after stores of
// several size classes, evictions, renames and removals, and counts as many blocks
// as the tier does.
func TestCheckOfTier(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, 1, 8<<20, nil)
	for round := range 6 {
		var batch []stored
		for i := range 60 {
			size := []int{1, 4096, 60000, 65536, 300000}[(round+rng.IntN(3))%5]
			key := block.Key{Group: "g", Hash: block.Hash(fmt.Sprintf("%d/%d", round%3, i))}
			batch = append(batch, stored{key, uint64(round*100 + i + 1), bytesOf(uint64(i), size)})
		}
		r.store(t, batch...)
		for _, b := range batch[:10] {
			r.Update(b.key, block.Key{Group: "moved", Hash: b.key.Hash}, &driver.Attrs{Seq: b.seq, Mode: 0o644})
		}
		r.Remove([]block.Key{batch[20].key, batch[21].key})
	}
	must(t, r.sync(t))
	want := r.Stats().Blocks
	if want == 0 {
		t.Fatal("nothing is held")
	}
	crashed := t.TempDir()
	copyDir(t, r.dirs[0], crashed)
	must(t, r.Close(context.Background()))
	for _, dir := range []string{crashed, r.dirs[0]} {
		for range 2 { // the second after a repair
			for _, repair := range []bool{false, true} {
				rep, err := Check(context.Background(), dir, CheckOptions{Repair: repair, Data: true})
				must(t, err)
				if rep.Errors != 0 || rep.Blocks != want {
					t.Errorf("%s: %d blocks, the tier held %d:\n%s", filepath.Base(dir), rep.Blocks, want, rep)
				}
			}
		}
	}
}
