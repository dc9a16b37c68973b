package latency

import (
	"math"
	"sync"
	"testing"
	"time"
)

// TestBuckets shows that each time is in the first bucket whose bound it does not exceed.
func TestBuckets(t *testing.T) {
	times := []time.Duration{math.MinInt64, -1, 0, 1, time.Hour, math.MaxInt64}
	for i := range Buckets - 1 {
		times = append(times, Bound(i)-1, Bound(i), Bound(i)+1)
	}
	for _, d := range times {
		want := 0
		for want < Buckets-1 && d > Bound(want) {
			want++
		}
		if got := bucket(d); got != want {
			t.Errorf("%v: bucket %d, want %d", d, got, want)
		}
	}
}

// TestHistogram shows that a Histogram loses no call of many goroutines, and counts as Counts does.
func TestHistogram(t *testing.T) {
	const workers, each = 8, 1000
	var h Histogram
	var want Counts
	var wg sync.WaitGroup
	for w := range workers {
		for i := range each {
			want.Observe(time.Duration(w*i) * time.Microsecond)
		}
		wg.Go(func() {
			for i := range each {
				h.Observe(time.Duration(w*i) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	var got Counts
	h.AddTo(&got)
	if got != want || got.Total() != workers*each {
		t.Errorf("got %d calls, %+v, want %+v", got.Total(), got, want)
	}
	h.AddTo(&got)
	if got.Total() != 2*workers*each || got.Sum != 2*want.Sum {
		t.Errorf("added twice: %d calls in %v", got.Total(), got.Sum)
	}
	if n := testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAges shows that each age is in the first bucket whose bound it does not exceed, and that the sum of many is right.
func TestAges(t *testing.T) {
	ages := []time.Duration{math.MinInt64, -1, 0, 1, math.MaxInt64}
	for i := range AgeBuckets - 1 {
		ages = append(ages, AgeBound(i)-1, AgeBound(i), AgeBound(i)+1)
	}
	for _, d := range ages {
		want := 0
		for want < AgeBuckets-1 && d > AgeBound(want) {
			want++
		}
		var a Ages
		if a.Observe(d); a.N[want] != 1 {
			t.Errorf("%v: %v, want bucket %d", d, a.N, want)
		}
	}
	var a Ages
	const years = 1000
	for range years {
		a.Observe(365 * 24 * time.Hour)
	}
	if want := float64(years * 365 * 86400); a.Sum != want || a.N[AgeBuckets-1] != years {
		t.Errorf("sum %v, want %v", a.Sum, want)
	}
}

// TestQuantile shows the bounds that shares of the times do not exceed.
func TestQuantile(t *testing.T) {
	var d, long Counts
	long.Observe(time.Hour)
	for range 98 {
		d.Observe(time.Microsecond)
	}
	d.Observe(time.Millisecond)
	d.Observe(time.Second)
	if d.Total() != 100 || d.Sum != 98*time.Microsecond+time.Millisecond+time.Second {
		t.Errorf("got %d calls in %v", d.Total(), d.Sum)
	}
	for q, longest := range map[float64]time.Duration{0: time.Microsecond, 0.5: time.Microsecond, 0.98: time.Microsecond, 0.99: time.Millisecond, 1: time.Second} {
		if got := d.Quantile(q); got < longest || got > 2*longest {
			t.Errorf("quantile %v: got %v, want %v or somewhat more", q, got, longest)
		}
	}
	if got := (&Counts{}).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: got %v", got)
	}
	if got := long.Quantile(0.5); got != Bound(Buckets-2) {
		t.Errorf("of the last bucket: got %v", got)
	}
}
