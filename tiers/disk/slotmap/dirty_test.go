package slotmap

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// TestHeaderList shows the order in which headers are written, and when those that the device
// has refused are tried again: later each time, at once if somebody waits for them, and soon
// again after one that was written.
func TestHeaderList(t *testing.T) {
	var l headerList
	now := time.Unix(1_900_000_000, 0)
	expect := func(what string, want ...SlotID) {
		t.Helper()
		if got := l.take(10); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	for id := range SlotID(5) {
		l.add(id)
	}
	if got := l.take(2); !slices.Equal(got, []SlotID{0, 1}) {
		t.Errorf("the oldest two: got %v", got)
	}
	expect("the others", 2, 3, 4)
	bad := errors.New("bad")
	if err := l.refusal(); err != nil {
		t.Errorf("none refused: got %v", err)
	}
	for _, wait := range []time.Duration{0, headerRetry, 2 * headerRetry, 4 * headerRetry} {
		l.refuse(7, bad)
		if err := l.refusal(); err != bad {
			t.Errorf("got %v, want %v", err, bad)
		}
		if wait > 0 {
			l.retry(now.Add(wait-1), false)
			expect("too early")
		}
		now = now.Add(wait)
		l.retry(now, false)
		expect("in time", 7)
	}
	for range 10 {
		l.refuse(7, bad)
		l.retry(now, true)
		expect("at once", 7)
	}
	now = now.Add(maxHeaderRetry)
	l.refuse(7, bad)
	l.retry(now, false)
	expect("at most", 7)
	l.retry(now, false) // written
	l.refuse(8, bad)
	l.retry(now, false)
	expect("the next", 8)
}
