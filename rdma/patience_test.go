package rdma

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPatience shows that what ends in time is not called, that the rest is called once before twice the time is over, and
// that the timer rests when nothing waits.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, begun := &Patience{Time: time.Second}, time.Now()
		late := make(chan time.Duration, 8)
		call := func() { late <- time.Since(begun) }
		for range 100 { // the timer ticks meanwhile
			w := p.Begin(call)
			time.Sleep(90 * time.Millisecond) // reason: the fake clock
			if !p.End(w) {
				t.Fatal("late after 90 ms")
			}
		}
		begun = time.Now()
		w := p.Begin(call)
		if d := <-late; d < p.Time || d > 2*p.Time {
			t.Errorf("called after %v", d)
		}
		if p.End(w) {
			t.Error("called, but told to be in time")
		}
		time.Sleep(3 * p.Time) // reason: the fake clock
		if len(late) > 0 || p.ticks {
			t.Errorf("%d more calls, ticks: %v", len(late), p.ticks)
		}
	})
}
