package pace

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	speedSamples = 64                   // kept for each size class
	minSamples   = 20                   // fewer are not enough
	minHedge     = 5 * time.Millisecond // a second fetch costs more than waiting for less
)

// Speeds has the times of recent fetches, by size class: a class is one power of two. Its lock is a
// leaf.
type Speeds struct {
	mu struct {
		sync.Mutex
		classes [65]*speedClass
	}
}

type speedClass struct {
	ring   [speedSamples]time.Duration
	sorted []time.Duration // the samples of ring
	n      int             // samples ever
}

// Add records that a block of that size took d to come.
func (s *Speeds) Add(size int64, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.classes[bits.Len64(uint64(size))]
	if c == nil {
		c = &speedClass{}
		s.mu.classes[bits.Len64(uint64(size))] = c
	}
	if c.n >= speedSamples {
		at, _ := slices.BinarySearch(c.sorted, c.ring[c.n%speedSamples])
		c.sorted = slices.Delete(c.sorted, at, at+1)
	}
	at, _ := slices.BinarySearch(c.sorted, d)
	c.sorted = slices.Insert(c.sorted, at, d)
	c.ring[c.n%speedSamples] = d
	c.n++
}

// Quantile returns the time in which the part q of the recent fetches of that size ended. False:
// there were too few.
func (s *Speeds) Quantile(size int64, q float64) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.classes[bits.Len64(uint64(size))]
	if c == nil || c.n < minSamples {
		return 0, false
	}
	return max(minHedge, c.sorted[min(int(q*float64(len(c.sorted))), len(c.sorted)-1)]), true
}

const (
	maxSilences = 8                // that count
	silenceLife = 10 * time.Second // of one silence
)

// Silences counts in how many fetches in a row nothing came from a peer. Fetches under way at the
// same time count as one. Its lock is a leaf.
type Silences struct {
	mu struct {
		sync.Mutex
		byPeer map[string]silentPeer
	}
}

type silentPeer struct {
	count int
	at    time.Time // of the latest
}

// Add counts a fetch that began then.
func (s *Silences) Add(peer string, began, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.byPeer == nil {
		s.mu.byPeer = map[string]silentPeer{}
	}
	last := s.mu.byPeer[peer]
	switch {
	case now.Sub(last.at) > silenceLife:
		last.count = 0
	case began.Before(last.at):
		return
	}
	s.mu.byPeer[peer] = silentPeer{min(last.count+1, maxSilences), now}
}

// Clear forgets a peer's silences: something came from it.
func (s *Silences) Clear(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.byPeer, peer)
}

// Count returns how many silences of a peer count: 8 at most.
func (s *Silences) Count(peer string, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.mu.byPeer[peer]
	if now.Sub(last.at) > silenceLife {
		return 0
	}
	return last.count
}
