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
