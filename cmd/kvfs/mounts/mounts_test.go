package mounts

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvfs/kvfs/fs/device"
)

// TestWaitGone shows that waiting for a mount that stays ends with the context.
func TestWaitGone(t *testing.T) {
	m, err := device.TopMount("/proc")
	if m == nil || err != nil {
		t.Skipf("no /proc in the mount table: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := WaitGone(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	m.ID = -1
	if err := WaitGone(t.Context(), m); err != nil {
		t.Errorf("a mount that is gone: %v", err)
	}
}

// TestWithin shows that a call that hangs has no result, and that all others have theirs, also what they say at the end
// of their context.
func TestWithin(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	got := Within(t.Context(), time.Second, []func(context.Context) error{
		func(context.Context) error { <-hang; return nil },
		func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		func(context.Context) error { return nil },
	})
	if got[0] != nil || got[1] == nil || !errors.Is(*got[1], context.DeadlineExceeded) || got[2] == nil || *got[2] != nil {
		t.Errorf("got %v", got)
	}
}
