package pace

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestHedgeNeeds shows that a quantile needs enough samples of the size, and is not too short for a hedge.
func TestHedgeNeeds(t *testing.T) {
	var s Speeds
	for i := range minSamples - 1 {
		s.Add(1<<20, 1)
		if _, ok := s.Quantile(1<<20, 0.5); ok {
			t.Fatalf("a quantile of %d samples", i+1)
		}
	}
	s.Add(1<<20+5, 1)
	if d, ok := s.Quantile(1<<20+9, 0.5); !ok || d != minHedge {
		t.Errorf("quantile of short times: %v %v, want %v", d, ok, minHedge)
	}
	if _, ok := s.Quantile(1<<21, 0.5); ok {
		t.Error("another size class has samples")
	}
	for i := range speedSamples {
		d := 3 * minHedge
		if i >= speedSamples*9/10 {
			d *= 1000
		}
		s.Add(1<<20, d)
	}
	if d, _ := s.Quantile(1<<20, 0.8); d != minHedge*3 {
		t.Errorf("quantile 0.8: %v", d)
	}
	if d, _ := s.Quantile(1<<20, 0.95); d != minHedge*3000 {
		t.Errorf("quantile 0.95: %v", d)
	}
}

// never is a timer that does not run out.
func never() (<-chan time.Time, func()) { return nil, func() {} }

// TestRoom shows that waiters for room are admitted in order, that a waiter can leave, and that
// a request beyond the limit goes alone.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		ctx, cancel := context.WithCancel(t.Context())
		n, err := r.Acquire(ctx, 60, never)
		if n != 60 || err != nil {
			t.Fatal(n, err)
		}
		if r.Try(50) || !r.Try(40) {
			t.Fatal("Try: want 40 and no more")
		}
		r.Release(40)
		large, small := make(chan error, 1), make(chan int64, 1)
		go func() { _, err := r.Acquire(ctx, 1000, never); large <- err }()
		synctest.Wait()
		go func() { n, _ := r.Acquire(t.Context(), 10, never); small <- n }()
		synctest.Wait()
		if len(r.mu.waiting) != 2 || r.Try(10) {
			t.Errorf("%d wait, or Try went before them", len(r.mu.waiting))
		}
		cancel()
		if err := <-large; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := <-small; n != 10 {
			t.Error(n)
		}
		r.Release(60)
		r.Release(10)
		if n, err := r.Acquire(t.Context(), 1000, never); n != 100 || err != nil {
			t.Error(n, err)
		}
	})
}

// TestCutAfterFunc shows that a function on a Cut is called once at its end, and not after stop.
func TestCutAfterFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCut(t.Context(), time.Now().Add(time.Hour))
		called := make(chan int, 4)
		stopped := c.AfterFunc(func() { called <- 0 })
		c.AfterFunc(func() { called <- 1 })
		child, cancel := context.WithCancel(c)
		defer cancel()
		if !stopped() || stopped() {
			t.Error("stop: want true once")
		}
		c.Cut(context.DeadlineExceeded)
		if n := <-called; n != 1 {
			t.Errorf("%d was called", n)
		}
		<-child.Done()
		if !errors.Is(child.Err(), context.DeadlineExceeded) {
			t.Error(child.Err())
		}
		late := c.AfterFunc(func() { called <- 2 })
		if n := <-called; n != 2 || late() {
			t.Errorf("%d was called", n)
		}
	})
}

// TestSpeedsForget compares the median with that of the latest samples, sorted anew.
func TestSpeedsForget(t *testing.T) {
	s, all := &Speeds{}, []time.Duration{}
	for range 10 * speedSamples {
		d := time.Second + time.Duration(rand.IntN(speedSamples))
		s.Add(1, d)
		all = append(all, d)
		latest := slices.Sorted(slices.Values(all[max(0, len(all)-speedSamples):]))
		if got, ok := s.Quantile(1, 0.5); ok && got != latest[len(latest)/2] {
			t.Fatalf("after %d samples: median %v, want %v", len(all), got, latest[len(latest)/2])
		}
	}
}
