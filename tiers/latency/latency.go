// Package latency counts how long calls take, in fixed buckets. A bucket is twice as wide as the one before.
//
//	Counts      plain numbers, for an owner with a lock, and as a snapshot
//	Histogram   the same for many goroutines at once
//	Ages        longer times, from 1 ms to days, for an owner with a lock
package latency

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets is the number of buckets. Bucket i counts times up to Bound(i). The last bucket has no bound.
const Buckets = 27

// firstBits is the bound of bucket 0 in nanoseconds, as a power of two.
const firstBits = 10

// Bound returns the longest time that bucket i counts: 1.024 us for bucket 0, 34 s for bucket Buckets-2.
func Bound(i int) time.Duration { return 1 << (firstBits + i) }

// bucket returns the bucket of a time.
func bucket(d time.Duration) int {
	return min(bits.Len64(uint64(max(d, 1)-1)>>firstBits), Buckets-1)
}

// Counts are the times of some calls. The zero value is ready. Its owner guards it.
type Counts struct {
	N   [Buckets]uint64 // calls, by bucket
	Sum time.Duration   // of all of them
}

// Observe counts a call that took d.
func (c *Counts) Observe(d time.Duration) {
	c.N[bucket(d)]++
	c.Sum += d
}

// Total returns the number of calls.
func (c *Counts) Total() (n uint64) {
	for _, k := range c.N {
		n += k
	}
	return n
}

// Quantile returns a time that a share q of the calls, from 0 to 1, did not exceed: the bound of their bucket, and that of
// the one before for the last bucket. It is 0 without calls.
func (c *Counts) Quantile(q float64) time.Duration {
	total, n := c.Total(), uint64(0)
	if total == 0 {
		return 0
	}
	for i, k := range c.N[:Buckets-1] {
		if n += k; n > 0 && float64(n) >= q*float64(total) {
			return Bound(i)
		}
	}
	return Bound(Buckets - 2)
}

// Histogram counts the times of calls. The zero value is ready. Its methods may be called in parallel, do not
// block and do not allocate.
type Histogram struct {
	n   [Buckets]atomic.Uint64
	sum atomic.Int64 // nanoseconds
}

// Observe counts a call that took d.
func (h *Histogram) Observe(d time.Duration) {
	h.n[bucket(d)].Add(1)
	h.sum.Add(int64(d))
}

// AddTo adds the calls so far to c. A call that ends meanwhile may be in c in part.
func (h *Histogram) AddTo(c *Counts) {
	for i := range h.n {
		c.N[i] += h.n[i].Load()
	}
	c.Sum += time.Duration(h.sum.Load())
}

// AgeBuckets is the number of buckets of Ages.
const AgeBuckets = 31

// firstAgeBits is firstBits of Ages.
const firstAgeBits = 20

// AgeBound returns the longest time that bucket i of Ages counts: 1.05 ms for bucket 0, 6.5 days for bucket AgeBuckets-2.
// The last bucket has no bound.
func AgeBound(i int) time.Duration { return 1 << (firstAgeBits + i) }

// Ages are the ages that some things had. The zero value is ready. Its owner guards it.
type Ages struct {
	N   [AgeBuckets]uint64 // things, by bucket
	Sum float64            // of all ages, in seconds: 100,000 days are too much for a time.Duration
}

// Observe counts a thing of age d. A negative age counts as 0.
func (a *Ages) Observe(d time.Duration) {
	d = max(d, 0)
	a.N[min(bits.Len64(uint64(max(d, 1)-1)>>firstAgeBits), AgeBuckets-1)]++
	a.Sum += d.Seconds()
}
