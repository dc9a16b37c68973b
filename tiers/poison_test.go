package tiers_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestRenamePoisoned: a temporary file whose write failed is not renamed to a block, also if the write fails while the
// rename is under way.
func TestRenamePoisoned(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	must(t, w.mkdir("g"))
	const rounds = 3000
	var wg sync.WaitGroup
	wg.Go(func() { // each second file is whole
		for i := range rounds {
			f, err := w.openOrCreate(10, "g/t.tmp")
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), 0)
			whole := i%2 == 0
			if err == nil && whole {
				_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), page)
			} else if err == nil {
				_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), 64*page)
			}
			if whole != (err == nil) {
				t.Errorf("write: %v", err)
			}
			f.close()
		}
	})
	blocks := 0
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			err := w.rename(20, "g/t.tmp", "g/a", false)
			if err != nil && !errors.Is(err, block.ErrNotFound) && !errors.Is(err, block.ErrPoisoned) {
				t.Errorf("rename: %v", err)
				return
			}
			if data, err := w.get(30, "g/a"); err == nil && len(data) != 2*page {
				t.Errorf("a block of %d bytes, want %d", len(data), 2*page)
				return
			} else if err == nil {
				blocks++
			}
		}
	})
	wg.Wait()
	close(done)
	reader.Wait()
	if blocks == 0 {
		t.Error("no file was renamed")
	}
}
