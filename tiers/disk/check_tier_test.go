package disk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
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
		var batch []driver.Transfer
		for i := range 60 {
			size := []int64{1, 4096, 60000, 65536, 300000}[(round+rng.IntN(3))%5]
			batch = append(batch, transferOf(t, block.Key{Group: "g", Hash: block.Hash(fmt.Sprintf("%d/%d", round%3, i))}, size, uint64(round*100+i+1)))
		}
		done := make(chan *driver.Result, 1)
		r.Store(&driver.Job{ID: driver.JobID(round + 1), Blocks: batch, Done: func(res *driver.Result) { done <- res }})
		<-done
		for _, b := range batch[:10] {
			r.Update(b.Key, block.Key{Group: "moved", Hash: b.Key.Hash}, &b.Attrs)
		}
		r.Remove([]block.Key{batch[20].Key, batch[21].Key})
	}
	synced := make(chan error, 1)
	r.Sync(func(err error) { synced <- err })
	if err := <-synced; err != nil {
		t.Fatal(err)
	}
	want := r.Stats().Blocks
	if want == 0 {
		t.Fatal("nothing is held")
	}
	crashed := t.TempDir()
	copyDir(t, r.dirs[0], crashed)
	if err := r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{crashed, r.dirs[0]} {
		for range 2 { // the second after a repair
			for _, repair := range []bool{false, true} {
				rep, err := Check(context.Background(), dir, CheckOptions{Repair: repair, Data: true})
				if err != nil {
					t.Fatal(err)
				}
				if rep.Errors != 0 || rep.Blocks != want {
					t.Errorf("%s: %d blocks, the tier held %d:\n%s", filepath.Base(dir), rep.Blocks, want, rep)
				}
			}
		}
	}
}

// transferOf is a block with a file of its own.
func transferOf(t *testing.T, key block.Key, size int64, seq uint64) driver.Transfer {
	t.Helper()
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(seq) + byte(i*31)
	}
	f, err := os.CreateTemp(t.TempDir(), "block")
	if err == nil {
		_, err = f.Write(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return driver.Transfer{Key: key, Size: size, Sum: block.Sum(data), File: f, Attrs: driver.Attrs{Seq: seq, Mode: 0o644, Mtime: 1}}
}
