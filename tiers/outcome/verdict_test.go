package outcome

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
)

// TestWords shows the sentence of each kind of outcome, with the reasons and actors that change it.
func TestWords(t *testing.T) {
	for _, row := range []struct {
		f    Outcome
		want string
	}{
		{Outcome{Kind: Evicted, Tier: "memory", Reason: ReasonCapacity}, "evicted from memory: it was full, and no other tier had it"},
		{Outcome{Kind: Evicted, Reason: ReasonRequest}, "evicted from all tiers: on request, and no other tier had it"},
		{Outcome{Kind: Expired, Reason: ReasonExpired}, "its time to live had passed"},
		{Outcome{Kind: Removed, Reason: ReasonUnlink, By: 17}, "removed by thread 17"},
		{Outcome{Kind: Removed, Reason: ReasonSuperseded}, "removed by another node"},
		{Outcome{Kind: Removed, Reason: ReasonWriteFailed}, "removed: write failed"},
		{Outcome{Kind: Removed}, "removed"},
		{Outcome{Kind: Replaced}, "replaced by another version, which is not there any more or not yet"},
		{Outcome{Kind: Replaced, By: 17}, "replaced by another version, from thread 17, which is not there any more or not yet"},
		{Outcome{Kind: Renamed, To: "g/b"}, "renamed to g/b"},
		{Outcome{Kind: Renamed, To: "g/b", By: 17}, "renamed to g/b by thread 17"},
		{Outcome{Kind: Corrupt, Tier: "disk"}, "the copy in disk failed its checksum and was dropped"},
		{Outcome{Kind: PeerGone}, "only another node had it, which is gone or has dropped it"},
		{Outcome{Kind: Unreachable, Tier: "disk"}, "disk could not give it"},
		{Outcome{Kind: Unreachable, Tier: "disk", Reason: ReasonTimeout}, "disk could not give it: timeout"},
		{Outcome{Kind: NoRoom, Reason: ReasonCapacity}, "memory had no room for it: it was full of what may not be evicted"},
		{Outcome{Kind: NoRoom, Reason: ReasonSize}, "memory had no room for it: it is larger than all of memory"},
		{Outcome{Kind: Deadline, Tier: "peer", Reason: ReasonExceeded}, "it had not come from peer by the open deadline"},
		{Outcome{Kind: Deadline, Tier: "peer", Reason: ReasonPredicted}, "it would have come from peer after the open deadline"},
	} {
		row.f.Time = 5e9
		v := row.f.Explain(false)
		if v.Text != row.want {
			t.Errorf("%+v: %q, want %q", row.f, v.Text, row.want)
		}
		if v.Kind != row.f.Kind || v.Tier != row.f.Tier || v.To != row.f.To || v.Rule != row.f.Reason.String() || !v.Time.Equal(time.Unix(5, 0)) {
			t.Errorf("%+v: %+v", row.f, v)
		}
	}
}

// TestActor shows that an actor tells the threads of several kernels apart.
func TestActor(t *testing.T) {
	f := Outcome{Kind: Removed, By: ActorOf(3, 1<<22-1)}
	if got, want := f.Explain(true).By, "thread 4194303 of mount 3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if by := ActorOf(0, 0); by != 0 {
		t.Errorf("nobody is %d", by)
	}
}

// TestOfLoad shows what each error of a load says about the block.
func TestOfLoad(t *testing.T) {
	for _, row := range []struct {
		err    error
		kind   Kind
		reason Reason
	}{
		{block.ErrNotFound, "", 0},
		{block.ErrClosed, "", 0},
		{block.ErrTooLarge, NoRoom, ReasonSize},
		{block.ErrNoSpace, NoRoom, ReasonCapacity},
		{block.ErrQuota, NoRoom, ReasonCapacity},
		{block.ErrUnavailable, Unreachable, ReasonUnavailable},
		{block.ErrCorrupt, Corrupt, 0},
		{errors.New("broken"), Unreachable, 0},
	} {
		kind, reason := OfLoad(fmt.Errorf("load: %w", row.err))
		if kind != row.kind || reason != row.reason {
			t.Errorf("%v: %q %v, want %q %v", row.err, kind, reason, row.kind, row.reason)
		}
	}
}

// TestUnread shows which outcomes are of opens that were misses although a tier had the block.
func TestUnread(t *testing.T) {
	for kind, want := range map[Kind]bool{Unreachable: true, NoRoom: true, Deadline: true, Evicted: false, Removed: false, Corrupt: false} {
		if f := (Outcome{Kind: kind}); f.Unread() != want {
			t.Errorf("%s: unread %v", kind, !want)
		}
	}
}
