package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestEventLog: subscribers read at their own pace; one that falls behind sees
// how much it missed, and none keeps a writer waiting (A39).
func TestEventLog(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page})
	ctx := context.Background()
	log := w.e.Events()
	const n = event.Ring/2 + 100
	for i := range n { // two events each: stored, removed
		name := fmt.Sprint(i)
		if err := errors.Join(w.put(10, name, nil), w.unlink(10, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := log.Next(); got != 2*n+1 {
		t.Errorf("Next: got %d, want %d", got, 2*n+1)
	}
	// The slow subscriber stands at the beginning.
	buf := make([]event.Event, 1000)
	next := uint64(1)
	for first := true; next < log.Next(); first = false {
		got, missed, err := log.Read(ctx, next, buf)
		if err != nil || got == 0 || first != (missed > 0) || first && missed != 200 {
			t.Fatalf("from %d: got %d, missed %d, %v", next, got, missed, err)
		}
		for i, ev := range buf[:got] {
			seq := next + missed + uint64(i)
			kind, key := event.Stored, block.Key{Hash: block.Hash(fmt.Sprint((seq - 1) / 2))}
			if seq%2 == 0 {
				kind = event.Removed
			}
			if ev.Seq != seq || ev.Kind != kind || ev.Key != key || ev.Tier != "memory" || ev.Time.IsZero() {
				t.Fatalf("event %d: got %+v", seq, ev)
			}
		}
		next += missed + uint64(got)
	}
	if got, missed, err := log.Read(ctx, next-1, nil); got != 0 || missed != 0 || err != nil {
		t.Errorf("empty buffer: got %d, %d, %v", got, missed, err)
	}
	w.close(false)
	if _, _, err := log.Read(ctx, next-1, buf); err != nil {
		t.Errorf("rest after close: %v", err)
	}
	if _, _, err := log.Read(ctx, next, buf); !errors.Is(err, block.ErrClosed) {
		t.Errorf("after close: got %v", err)
	}
}

// TestEventLogWait: Read waits for the next event, the end of its context, or the
// end of the log.
func TestEventLogWait(t *testing.T) {
	dir := shmDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := open(t, dir, state.Options{})
		log := w.e.Events()
		type result struct {
			ev  event.Event
			err error
		}
		results := make(chan result, 1)
		read := func(ctx context.Context, seq uint64) {
			var buf [1]event.Event
			_, _, err := log.Read(ctx, seq, buf[:])
			results <- result{buf[0], err}
		}
		waits := func(what string) {
			t.Helper()
			synctest.Wait()
			select {
			case r := <-results:
				t.Fatalf("%s: did not wait: %+v", what, r)
			default:
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		go read(ctx, 1)
		waits("first event")
		if err := w.put(10, "a", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if r := <-results; r.err != nil || describe(r.ev) != "stored a 1" {
			t.Errorf("first event: got %+v", r)
		}
		go read(ctx, 2)
		waits("second event")
		cancel()
		if r := <-results; !errors.Is(r.err, context.Canceled) {
			t.Errorf("cancelled: got %v", r.err)
		}
		go read(context.Background(), 2)
		waits("close")
		w.close(false)
		if r := <-results; !errors.Is(r.err, block.ErrClosed) {
			t.Errorf("closed: got %v", r.err)
		}
	})
}

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
