// Package event has the log of events about blocks, and decides which user may know of which event.
package event

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Kind says what happened to a block.
type Kind uint8

// The kinds of event.
const (
	Stored     Kind = iota + 1 // committed in the tier, or copied or promoted into it
	Evicted                    // dropped from the tier; other tiers may hold it
	Removed                    // dropped from all tiers: unlinked, replaced or expired
	Renamed                    // Key is the new name, From the old one
	Changed                    // its attributes, not its bytes; this and the next two only with a Remote tier
	DirCreated                 // or its attributes changed
	DirRemoved
	DirRenamed // Key is the new name, From the old one; the files below moved along
)

// String returns the kind in lower case.
func (k Kind) String() string {
	return [...]string{"invalid", "stored", "evicted", "removed", "renamed", "changed", "created", "removed", "renamed"}[k]
}

// Event is one entry of the log. Sequence numbers ascend by one.
type Event struct {
	Seq    uint64
	Time   time.Time
	Kind   Kind
	Tier   string         // "memory" and so on; empty means all tiers
	Key    block.Key      // the path, also of a directory
	From   block.Key      // Renamed and DirRenamed only
	Size   int64          // bytes
	Reason outcome.Reason // why the block went, or came

	Guard []driver.DirAttrs // of the block and the directories above, but only of those that not all users may read
}

// Eviction is a way in which blocks leave a tier.
type Eviction struct {
	Tier string
	Rule outcome.Reason
}

// Ring is the number of events that the log keeps, in about 3 MB. At 10,000 commits
// a second a subscriber may fall 1.6 s behind before it sees a gap.
const Ring = 1 << 14

// Log keeps the latest events in a ring. Any number of subscribers read it at
// their own pace, and never slow the writer. A subscriber that falls behind by more
// than the ring gets a gap. Methods may be called in parallel.
type Log struct {
	mu struct {
		sync.Mutex
		closed bool
		ring   []Event
		next   uint64        // sequence number of the next event, from 1
		news   chan struct{} // closed at the next event; nil while no reader waits

		evicted map[Eviction]uint64
	}
}

// New makes an empty log. Its first event has the number 1.
func New() *Log {
	l := &Log{}
	l.mu.next, l.mu.evicted = 1, map[Eviction]uint64{}
	return l
}

// Add appends an event and numbers it. It never blocks, so the engine can add
// events under its lock, in the order in which they happen.
func (l *Log) Add(ev Event) {
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		return
	}
	ev.Seq = l.mu.next
	if len(l.mu.ring) < Ring {
		l.mu.ring = append(l.mu.ring, ev)
	} else {
		l.mu.ring[(ev.Seq-1)%Ring] = ev
	}
	l.mu.next++
	if ev.Kind == Evicted {
		l.mu.evicted[Eviction{ev.Tier, ev.Reason}]++
	}
	l.wakeLocked()
	l.mu.Unlock()
}

// Evictions returns how many blocks have left which tier, and why.
func (l *Log) Evictions() map[Eviction]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.mu.evicted)
}

// Close ends the log: Read fails once it has been read to its end.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.closed {
		l.mu.closed = true
		l.wakeLocked()
	}
}

// wakeLocked wakes the readers that wait for an event.
func (l *Log) wakeLocked() {
	if l.mu.news != nil {
		close(l.mu.news)
		l.mu.news = nil
	}
}

// Next returns the sequence number that the next event will get.
func (l *Log) Next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.next
}

// Read copies events with numbers from seq on into buf, and returns how many. It
// waits until there is at least one. If seq is no longer in the ring, Read starts
// at the oldest event, and missed is the number of events lost. It fails with
// ctx's error, or with block.ErrClosed once the log is closed and read to its end.
func (l *Log) Read(ctx context.Context, seq uint64, buf []Event) (n int, missed uint64, err error) {
	if len(buf) == 0 {
		return 0, 0, nil
	}
	for {
		l.mu.Lock()
		next, closed := l.mu.next, l.mu.closed
		if seq < next {
			if oldest := next - uint64(len(l.mu.ring)); seq < oldest {
				missed, seq = oldest-seq, oldest
			}
			for ; n < len(buf) && seq < next; n, seq = n+1, seq+1 {
				buf[n] = l.mu.ring[(seq-1)%Ring]
			}
			l.mu.Unlock()
			return n, missed, nil
		}
		if closed {
			l.mu.Unlock()
			return 0, 0, block.ErrClosed
		}
		if l.mu.news == nil {
			l.mu.news = make(chan struct{})
		}
		news := l.mu.news
		l.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}
