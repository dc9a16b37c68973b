//go:build ofi && cgo

package fabric

import (
	"testing"
	"time"
)

// TestAbsence shows that time without a poll on this node does not count as silence of the peer.
func TestAbsence(t *testing.T) {
	for _, c := range []struct {
		name    string
		unseen  time.Duration
		stalled bool
	}{{"looked all the time", 0, true}, {"did not run", time.Hour, false}} {
		e := &endpoint{stall: time.Minute}
		now := time.Now()
		e.mu.reached, e.mu.moved, e.mu.looked = true, now.Add(-time.Hour), now.Add(-c.unseen)
		if _, stalled := e.stalled(); stalled != c.stalled {
			t.Errorf("%s: stalled %v", c.name, stalled)
		}
	}
}
