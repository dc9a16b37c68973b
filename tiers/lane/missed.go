package lane

import (
	"errors"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// retryPause is the time between two attempts to store a block with a tier that is away.
const retryPause = time.Second

// missed are the blocks that a tier has not got because it was away. One of them is tried at intervals. Once that
// succeeds the others follow, oldest first, at no more than Options.CatchUpRate, until one fails again.
type missed struct {
	blocks   fifo[deferred]
	attempt  bool          // one block may be tried, although the tier may be away
	returned bool          // the tier has stored a block that it had missed, and has missed none since
	due      time.Time     // when the next block may be tried
	timer    *time.Timer   // it will call wakeUp; nil: none
	waiting  []func(error) // barriers that wait until blocks have left this list
}

// ReturnedLocked reports whether the tier was away, and is being given what it missed.
func (l *Lane) ReturnedLocked() bool { return l.missed.returned && l.missed.blocks.len() > 0 }

// missLocked notes those of the stores of a job that failed because the tier is away, and whether the tier is back.
func (l *Lane) missLocked(list []*Store, errs []error) {
	m := &l.missed
	var again, first []deferred
	for i, s := range list {
		switch {
		case errs[i] == nil:
			m.returned = m.returned || s.Again
		case !errors.Is(errs[i], block.ErrUnavailable), errors.Is(errs[i], ErrAnswer), s.ID == 0:
		case s.Again:
			again = append(again, deferred{s.ID, s.Seq})
		default:
			first = append(first, deferred{s.ID, s.Seq})
		}
	}
	if len(again)+len(first) > 0 {
		m.returned = false
	}
	if m.returned {
		l.wakeWaitingLocked()
	}
	m.blocks.popped -= uint64(len(again)) // they have not come through
	for _, d := range slices.Backward(again) {
		m.blocks.pushFront(d)
	}
	for _, d := range first {
		if m.blocks.len() < maxDeferred {
			m.blocks.push(d)
		}
	}
	l.stats.MissedBlocks = int64(m.blocks.len())
	if m.blocks.len() > 0 && !m.returned {
		l.scheduleLocked(retryPause)
	}
}

// wakeWaitingLocked passes the barriers that wait until the tier has got some of what it missed.
func (l *Lane) wakeWaitingLocked() {
	for _, fn := range l.missed.waiting {
		l.stores.push(&Store{barrier: fn})
	}
	l.missed.waiting = nil
}

// scheduleLocked wakes Run up after a time, unless that will happen anyway. If the tier is still away then, one block may be tried.
func (l *Lane) scheduleLocked(after time.Duration) {
	if l.missed.timer != nil {
		return
	}
	l.missed.timer = time.AfterFunc(after, func() {
		l.o.Lock.Lock()
		l.missed.timer = nil
		l.missed.attempt = !l.missed.returned && !l.attemptingLocked()
		l.o.Lock.Unlock()
		l.wakeUp()
	})
}

// attemptingLocked reports whether the tier is storing a block that it had missed.
func (l *Lane) attemptingLocked() bool {
	for s := range l.begun {
		if s.Again {
			return true
		}
	}
	return false
}

// retryLocked queues blocks that the tier has missed, as far as it is back, and as the rate and the queue allow. It forgets
// them if the tier does not come back.
func (l *Lane) retryLocked() {
	m := &l.missed
	if f, ok := l.o.Tier.(driver.Failing); ok && m.blocks.len() > 0 && f.Failed() {
		for m.blocks.len() > 0 {
			m.blocks.pop()
		}
		l.stats.MissedBlocks = 0
		l.wakeWaitingLocked()
	}
	for m.blocks.len() > 0 && (m.returned || m.attempt) {
		now := l.o.Now()
		if wait := m.due.Sub(now); wait > 0 {
			l.scheduleLocked(wait)
			return
		}
		d := m.blocks.front()
		size, ok := l.o.Owner.DeferredLocked(d.id, d.seq)
		if ok && l.FullLocked(size) {
			return
		}
		m.blocks.pop()
		l.stats.MissedBlocks--
		if !ok {
			l.wakeWaitingLocked()
		} else {
			m.attempt = false
			if l.o.CatchUpRate > 0 {
				m.due = now.Add(time.Duration(float64(size) / float64(l.o.CatchUpRate) * float64(time.Second)))
			}
			l.o.Owner.StoreLocked(d.id, true)
		}
	}
	if m.blocks.len() > 0 {
		l.scheduleLocked(retryPause) // the attempt may come to nothing before the tier is asked
	}
}
