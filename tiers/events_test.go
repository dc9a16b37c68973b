package tiers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestLate: what the kernel sends after the engine was closed does no harm.
func TestLate(t *testing.T) {
	w := open(t, shmDir(t), state.Options{})
	must(t, w.put(10, "b", []byte("x")))
	f := w.write(10, "a", "x")
	if err := w.e.Close(context.Background(), false); err != nil {
		t.Error(err)
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
	}()
	f.release()
	if err := w.unlink(10, "b"); err != nil && !errors.Is(err, block.ErrNotFound) && !errors.Is(err, block.ErrClosed) {
		t.Errorf("unlink: got %v", err)
	}
	if err := w.e.Close(context.Background(), false); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
