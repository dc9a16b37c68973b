package state

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/kvfs/kvfs/tiers/room"
)

// WaitSpace waits for space, for the time d, or for ctx. Only the end of ctx is an error.
func WaitSpace(ctx context.Context, space <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-space:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// NoDeadline is the deadline of an open that has none.
const NoDeadline = time.Duration(math.MaxInt64)

// DeadlineOfLocked returns how long the open of a block of group gr may take. gr is nil if the group has no account;
// want is as in PresenceOptions.
func (st *State) DeadlineOfLocked(gr *room.Group, want time.Duration) time.Duration {
	if want = cmp.Or(want, st.Deadlines[gr], st.Opts.OpenDeadline); want <= 0 {
		return NoDeadline
	}
	return want
}

// RecordBatch bounds the blocks for which one hold of the lock asks for updates.
const RecordBatch = 1024
