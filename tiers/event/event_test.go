package event_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// TestLog shows that a reader that comes too late hears how much it missed, that one at the end waits for
// the next event, its ctx or the close, and that a closed log is read to its end.
func TestLog(t *testing.T) { synctest.Test(t, readLog) }

func readLog(t *testing.T) {
	l := event.New()
	for range event.Ring + 3 {
		l.Add(event.Event{Kind: event.Stored})
	}
	buf := make([]event.Event, 2)
	n, missed, err := l.Read(t.Context(), 1, buf)
	if n != 2 || missed != 3 || err != nil || buf[0].Seq != 4 || buf[1].Seq != 5 {
		t.Fatalf("from 1: %d events from %d, %d missed, %v", n, buf[0].Seq, missed, err)
	}
	if n, missed, err := l.Read(t.Context(), 1, nil); n != 0 || missed != 0 || err != nil {
		t.Errorf("into an empty buffer: %d events, %d missed, %v", n, missed, err)
	}
	end := l.Next()
	got := make(chan error, 1)
	read := func(ctx context.Context, seq uint64) {
		n, _, err := l.Read(ctx, seq, buf)
		if err == nil && (n != 1 || buf[0].Kind != event.Evicted) {
			err = errors.New("another event")
		}
		got <- err
	}
	meet := func(what string, want error, ctx context.Context, seq uint64, do func()) {
		t.Helper()
		go read(ctx, seq)
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("%s: a reader at the end does not wait", what)
		}
		do()
		if err := <-got; !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := event.Event{Kind: event.Evicted, Tier: "memory", Reason: outcome.ReasonQuota}
	meet("the next event", nil, t.Context(), end, func() { l.Add(gone) })
	if n := l.Evictions(); len(n) != 1 || n[event.Eviction{Tier: "memory", Rule: outcome.ReasonQuota}] != 1 {
		t.Errorf("evictions %v", n)
	}
	meet("the end of the ctx", context.Canceled, ctx, end+1, cancel)
	meet("the close", block.ErrClosed, t.Context(), end+1, l.Close)
	l.Add(event.Event{Kind: event.Stored}) // is lost
	if n, _, err := l.Read(t.Context(), end, buf); n != 1 || err != nil {
		t.Errorf("the last event of a closed log: %d, %v", n, err)
	}
	if _, _, err := l.Read(t.Context(), end+1, buf); !errors.Is(err, block.ErrClosed) {
		t.Errorf("behind the end of a closed log: %v", err)
	}
}

// TestShows shows who may know of an event: a user who may read the block, and search and list the
// directories above it.
func TestShows(t *testing.T) {
	const file, dir = 0o100000, 0o040000
	guarded := func(mode uint32) *event.Event {
		return &event.Event{Guard: []driver.DirAttrs{{Mode: mode, UID: 7, GID: 70}}}
	}
	for _, c := range []struct {
		mode                 uint32
		owner, group, others bool
	}{
		{file | 0o600, true, false, false},
		{file | 0o640, true, true, false},
		{file | 0o044, false, true, true}, // the owner has only his own bits
		{dir | 0o711, true, false, false}, // search alone shows no names
		{dir | 0o750, true, true, false},
		{dir | 0o755, true, true, true},
	} {
		e := guarded(c.mode)
		owner, group := e.Shows(&event.Viewer{UID: 7}), e.Shows(&event.Viewer{UID: 8, GIDs: []uint32{1, 70}})
		if others := e.Shows(&event.Viewer{UID: 8, GIDs: []uint32{1}}); owner != c.owner || group != c.group || others != c.others {
			t.Errorf("mode %o: owner %v, group %v, others %v", c.mode, owner, group, others)
		}
		if !e.Shows(nil) {
			t.Errorf("mode %o: not shown to all", c.mode)
		}
	}
}
