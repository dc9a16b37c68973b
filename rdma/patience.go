package rdma

import (
	"sync"
	"time"
)

// Patience calls functions for what takes longer than Time, before twice that is over. Most things end before. A timer for
// each of them would wake another thread each time that it is set; a Patience has one timer for all of them. Its zero value
// with Time is usable, from many goroutines.
type Patience struct {
	Time time.Duration

	mu    sync.Mutex
	turn  int  // counts the ends of Time
	ticks bool // the timer runs
	used  bool // since the latest turn
	waits map[*Wait]int
}

// Wait is one thing that may take long.
type Wait struct{ late func() }

// Begin has late called in a goroutine of its own, unless End comes before.
func (p *Patience) Begin(late func()) *Wait {
	w := &Wait{late}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits == nil {
		p.waits = map[*Wait]int{}
	}
	p.waits[w] = p.turn
	p.used = true
	if !p.ticks {
		p.ticks = true
		time.AfterFunc(p.Time, p.tick) // ends when nothing waits
	}
	return w
}

// End reports whether w ended in time: its function has not been called and will not be.
func (p *Patience) End(w *Wait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, waits := p.waits[w]
	delete(p.waits, w)
	return waits
}

// tick is the end of a turn. What waited at the end of the last one is late.
func (p *Patience) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w, turn := range p.waits {
		if turn < p.turn {
			delete(p.waits, w)
			go w.late() // the caller of Begin ends it
		}
	}
	p.turn++
	if p.ticks = p.used || len(p.waits) > 0; p.ticks {
		time.AfterFunc(p.Time, p.tick)
	}
	p.used = false
}
