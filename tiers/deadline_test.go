package tiers_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// openLike opens a file in one of the two ways and returns what the error is.
func (w *lower) openLike(later bool, name string) string {
	w.t.Helper()
	a, open := w.found(10, name), w.openWaiting
	defer w.forget(a.ID)
	if later {
		open = w.openCold
	}
	o, err := open(a.ID, by(10))
	if err == nil {
		w.e.CloseRead(o.ID)
	}
	return kind(err)
}

// deadlines returns the counters of misses by the open deadline, and by PromoteTimeout.
func (w *lower) deadlines() (predicted, exceeded, timeouts uint64) {
	st := w.e.Stats()
	return st.Counters.DeadlinePredicted, st.Counters.DeadlineExceeded, st.Secondaries[0].PromoteTimeouts
}

// inBubble runs a test in a bubble whose clock begins now, because files carry the time of the
// kernel.
func inBubble(t *testing.T, fn func(t *testing.T, dir string, now func() time.Time)) {
	t.Helper()
	dir, real := shmDir(t), time.Now()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fn(t, dir, func() time.Time { return real.Add(time.Since(start)) })
	})
}

// TestOpenDeadlinePredicted: an open of a block that would come too late is a miss at once, and
// counted; the block is where it was, and the tier, which has nothing to do, is asked for it all
// the same, so that the next open finds it, and that the tier is known to be faster.
func TestOpenDeadlinePredicted(t *testing.T) {
	for _, later := range []bool{false, true} {
		inBubble(t, func(t *testing.T, dir string, now func() time.Time) {
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Latency: time.Millisecond})
			w := openLower(t, dir, state.Options{OpenDeadline: 20 * time.Millisecond, CapacityBytes: 64 * page, Now: now}, disk)
			w.nonresident("12345", "a", "b", "c")
			w.e.Measure("disk", 5, time.Second)
			release := disk.Hold(tiertest.OpLoad)
			begin := time.Now()
			if got := w.openLike(later, "a"); got != "ErrNotFound" || time.Since(begin) != 0 {
				t.Errorf("open: %s after %v", got, time.Since(begin))
			}
			synctest.Wait()
			if n := w.e.Promotions(); n != 1 {
				t.Errorf("%d promotions", n)
			}
			w.wantWhere("a", "[disk]")
			// The tier is busy now: what else is late is not asked for.
			if got := w.openLike(later, "b"); got != "ErrNotFound" || time.Since(begin) != 0 {
				t.Errorf("another: %s after %v", got, time.Since(begin))
			}
			if n := w.e.Promotions(); n != 1 {
				t.Errorf("%d promotions", n)
			}
			if got := w.states(names.PresenceOptions{}, "a", "b"); got != "wl" {
				t.Errorf("states %q", got)
			}
			if p, x, to := w.deadlines(); p != 2 || x != 0 || to != 0 {
				t.Errorf("counted %d predicted, %d exceeded, %d timeouts", p, x, to)
			}
			release()
			w.drain()
			w.wantWhere("a", "[memory disk]", "b", "[disk]")
			w.e.Measure("disk", 5, 0) // as many such loads would tell
			if got := w.openLike(later, "b"); got != "ok" {
				t.Errorf("from a faster tier: %s", got)
			}
			w.drain()
			if p, _, _ := w.deadlines(); p != 2 {
				t.Errorf("counted %d predicted", p)
			}
			w.end()
		})
	}
}

// TestOpenDeadlineNonblock: an open that does not wait is not concerned, nor is a deadline that
// only a query has.
func TestOpenDeadlineNonblock(t *testing.T) {
	// The clock stands still, so that what was measured is not too old to count.
	w, disk := openLowerOne(t, state.Options{OpenDeadline: time.Second, Now: newTestClock().now}, tiertest.ReferenceOptions{})
	w.nonresident("content", "g/a")
	w.e.Measure("disk", 7, time.Hour)
	release := disk.Hold(tiertest.OpLoad)
	a := w.found(10, "g/a")
	w.wantStates("l", "g/a")
	if _, err := w.e.OpenRead(context.Background(), a.ID, by(10), true); !errors.Is(err, block.ErrPending) {
		t.Errorf("open: %v", err)
	}
	if p, x, to := w.deadlines(); p+x+to != 0 {
		t.Errorf("counted %d, %d, %d", p, x, to)
	}
	w.wantStates("w", "g/a")
	w.forget(a.ID)
	release()
	w.atRest()
	w.end()
}

// TestPresencesDeadline: a query may have a deadline of its own, longer, shorter, or none.
func TestPresencesDeadline(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{OpenDeadline: time.Second, Now: newTestClock().now}, tiertest.ReferenceOptions{})
	w.nonresident("12345", "g/a", "g/b")
	must(t, w.put(10, "g/m", []byte("x")))
	w.e.Measure("disk", 5, 100*time.Millisecond)
	for _, row := range []struct {
		deadline time.Duration
		want     string
	}{{0, "1m"}, {-1, "1m"}, {99 * time.Millisecond, "lm"}, {101 * time.Millisecond, "1m"}} {
		if got := w.states(names.PresenceOptions{Deadline: row.deadline}, "g/a", "g/m"); got != row.want {
			t.Errorf("deadline %v: %q, want %q", row.deadline, got, row.want)
		}
	}
	release := disk.Hold(tiertest.OpLoad) // what the tier was asked for before comes first
	w.e.Hint(nil, "", [][]byte{[]byte("g/a")})
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 1))
	for deadline, want := range map[time.Duration]string{150 * time.Millisecond: "l", 250 * time.Millisecond: "1"} {
		if got := w.states(names.PresenceOptions{Deadline: deadline}, "g/b"); got != want {
			t.Errorf("deadline %v, behind another block: %q, want %q", deadline, got, want)
		}
	}
	release()
	if p, _, _ := w.deadlines(); p != 0 {
		t.Errorf("%d counted as opens", p)
	}
	w.end()
}

// TestOpenDeadlineClock: a deadline passes though the clock that others set stands still.
func TestOpenDeadlineClock(t *testing.T) {
	clock := newTestClock()
	w, disk := openLowerOne(t, state.Options{OpenDeadline: time.Millisecond, PromoteTimeout: time.Hour, Now: clock.now}, tiertest.ReferenceOptions{})
	w.nonresident("content", "g/a")
	release := disk.Hold(tiertest.OpLoad)
	for _, later := range []bool{false, true} {
		if got := w.openLike(later, "g/a"); got != "ErrNotFound" {
			t.Errorf("later %v: %s", later, got)
		}
	}
	if _, x, _ := w.deadlines(); x != 2 {
		t.Errorf("%d exceeded", x)
	}
	release()
	w.atRest()
	w.end()
}

// TestOpenDeadlineRace: where the deadline and the block come at the same time, each open is
// answered once, one way or the other, and no pin is left.
func TestOpenDeadlineRace(t *testing.T) {
	w, _ := openLowerOne(t, state.Options{OpenDeadline: time.Millisecond}, tiertest.ReferenceOptions{
		Direct: true, Latency: 2 * time.Millisecond, Clock: jitter{},
	})
	names := numbered("g", 4)
	w.nonresident("content", names...)
	var mu sync.Mutex
	answers := map[string]int{}
	for range 40 {
		var wg sync.WaitGroup
		for i, name := range names {
			for _, later := range []bool{false, true} {
				wg.Go(func() {
					got := w.openLike(later || i%2 == 0, name)
					mu.Lock()
					defer mu.Unlock()
					answers[got]++
				})
			}
		}
		wg.Wait()
		w.atRest()
		_, err := w.e.EvictFrom(until(t), tiers.EvictRequest{Tier: "memory", Paths: names}) // some may not have been asked for
		must(t, err)
	}
	if n := answers["ok"] + answers["ErrNotFound"]; n != 40*8 || answers["ErrNotFound"] == 0 {
		t.Errorf("answers %v", answers)
	}
	if p, x, to := w.deadlines(); int(p+x) != answers["ErrNotFound"] || to != 0 {
		t.Errorf("counted %d predicted, %d exceeded, %d timeouts; answers %v", p, x, to, answers)
	}
	w.end()
}

// TestOpenDeadlineStale: what a tier gave long ago does not count.
func TestOpenDeadlineStale(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string, now func() time.Time) {
		disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Latency: time.Millisecond})
		w := openLower(t, dir, state.Options{OpenDeadline: 20 * time.Millisecond, CapacityBytes: 64 * page, Now: now}, disk)
		w.nonresident("12345", "a")
		w.e.Measure("disk", 5, time.Second)
		w.wantStates("l", "a")
		<-time.After(11 * time.Second)
		w.wantStates("1", "a")
		if got := w.openLike(true, "a"); got != "ok" {
			t.Errorf("open: %s", got)
		}
		w.end()
	})
}
