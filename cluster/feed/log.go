package feed

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of LogOptions.
const (
	defaultRecords    = 1 << 16
	defaultBatchBytes = 256 << 10
	defaultPathBytes  = 16 << 20
	defaultInterval   = 10 * time.Millisecond

	// perSubscriber lengthens the default Interval for many subscribers. A node then sends 10,000
	// batches a second at most, however many nodes follow it, and receives as many if all nodes are
	// alike. See "Scale" in the package comment.
	perSubscriber = 100 * time.Microsecond
)

// LogOptions configures a Log.
type LogOptions struct {
	Epoch   uint64 // required: not 0, and different from that of any earlier incarnation
	Records int    // most records kept. Zero means 1<<16.
	// PathBytes is the most bytes of paths in the records kept. Zero means 16 MiB.
	PathBytes int
	// Interval is the least time between two batches to one subscriber, unless the first was full.
	// The first record after a rest goes at once; the next ones are gathered. Zero means 10 ms, or
	// 0.1 ms for each subscriber if that is more.
	Interval time.Duration
	// BatchBytes is the most bytes of Records in a batch; a larger record goes alone.
	// Zero means 256 KiB.
	BatchBytes int
}

// Log is the feed of one node: its latest records in a ring. It never blocks Append. Its methods
// may be called in parallel.
type Log struct {
	o        LogOptions
	closed   chan struct{} // closed by Close
	counters logCounters
	summed   summed
	looks    lookTable

	mu struct {
		sync.Mutex
		ring   []Record      // record n is at (n-1) % o.Records; grows to o.Records
		next   uint64        // number of the next record, from 1
		floor  uint64        // earlier records have left the ring because of their paths
		paths  int           // bytes of those in the ring
		wake   chan struct{} // closed at the next Append; nil if there is no waiter
		serves map[*server]struct{}
		closed bool
	}
}

// logCounters counts the running Serves, and what all of them sent.
type logCounters struct {
	subscribers                                          atomic.Int64
	records, bytes, batches, snapshots, resumed, overran atomic.Uint64
}

// NewLog returns an empty log. It panics if Epoch is 0.
func NewLog(o LogOptions) *Log {
	if o.Epoch == 0 {
		panic("feed: log without an epoch")
	}
	if o.Records <= 0 {
		o.Records = defaultRecords
	}
	if o.BatchBytes <= 0 {
		o.BatchBytes = defaultBatchBytes
	}
	if o.PathBytes <= 0 {
		o.PathBytes = defaultPathBytes
	}
	l := &Log{o: o, closed: make(chan struct{})}
	l.summed.turn = make(chan struct{}, 1)
	l.summed.turn <- struct{}{}
	l.looks.init()
	l.mu.next, l.mu.serves = 1, map[*server]struct{}{}
	return l
}

// Append adds records. The state in a record must be reached already, or a snapshot that begins now
// might miss it. Records of one key must come in the order of their events. After Close, Append
// does nothing.
func (l *Log) Append(records ...Record) {
	for i := range records {
		if records[i].Op < Hold || records[i].Op > Bury {
			panic("feed: record without a known operation")
		}
	}
	if len(records) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	for i := range records {
		if len(l.mu.ring) < l.o.Records {
			l.mu.ring = append(l.mu.ring, records[i])
		} else {
			at := &l.mu.ring[(l.mu.next-1)%uint64(l.o.Records)]
			l.mu.paths -= len(at.Path)
			*at = records[i]
		}
		l.mu.next++
		l.mu.paths += len(records[i].Path)
		l.boundLocked()
	}
	if l.mu.wake != nil {
		close(l.mu.wake)
		l.mu.wake = nil
	}
}

// boundLocked removes the oldest records from the ring until the paths of the others are small
// enough.
func (l *Log) boundLocked() {
	for l.mu.paths > l.o.PathBytes && l.mu.next > 1 {
		l.mu.floor = max(l.mu.floor, l.mu.next-uint64(len(l.mu.ring)))
		at := &l.mu.ring[(l.mu.floor-1)%uint64(l.o.Records)]
		l.mu.paths -= len(at.Path)
		*at = Record{Op: Release}
		l.mu.floor++
	}
}

// Resync makes every subscriber take a new snapshot, as if the ring had overtaken it. Call it when
// records may have been missed.
func (l *Log) Resync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	round := uint64(l.o.Records)
	l.mu.ring, l.mu.paths, l.mu.next = nil, 0, ((l.mu.next-1)/round+1)*round+1 // where an empty ring begins
	if l.mu.wake != nil {
		close(l.mu.wake)
		l.mu.wake = nil
	}
}

// Position returns the position after the latest record.
func (l *Log) Position() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Position{l.o.Epoch, l.mu.next}
}

// Lag returns how many records the slowest subscriber has not been sent yet. It is 0 without subscribers.
func (l *Log) Lag() (lag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.mu.serves {
		lag = max(lag, l.mu.next-s.sent.Load())
	}
	return lag
}

// enter and leave note which Serves run.
func (l *Log) enter(s *server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.sent.Store(l.mu.next)
	l.mu.serves[s] = struct{}{}
}

func (l *Log) leave(s *server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.serves, s)
}

// Close ends all Serves: they return ErrClosed, after a send that is under way.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.closed {
		l.mu.closed = true
		l.mu.ring = nil
		close(l.closed)
	}
}

// Snapshotter calls fn for what a node holds now, and for all graves that it knows, until fn fails,
// and returns its error. What changes meanwhile may be missing or old, because Append reports it.
// fn sends, so it may block: the Snapshotter must not hold a lock that Append needs.
type Snapshotter func(ctx context.Context, fn func(r *Record) error) error

// interval returns the least time between two batches to one subscriber.
func (l *Log) interval() time.Duration {
	if l.o.Interval > 0 {
		return l.o.Interval
	}
	return max(defaultInterval, time.Duration(l.counters.subscribers.Load())*perSubscriber)
}

// read copies records from number next on to the front of buf, and returns their number. ok is
// false if next is no longer in the ring, or never was. If there are no records yet, wake is closed
// when there are.
func (l *Log) read(next uint64, buf []Record) (n int, wake <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := uint64(len(l.mu.ring))
	if next < max(l.mu.next-kept, l.mu.floor) || next > l.mu.next || next == 0 {
		return 0, nil, false
	}
	if next == l.mu.next {
		if l.mu.wake == nil {
			l.mu.wake = make(chan struct{})
		}
		return 0, l.mu.wake, true
	}
	n = min(len(buf), int(l.mu.next-next))
	at := (next - 1) % uint64(l.o.Records)
	first := copy(buf[:n], l.mu.ring[at:])
	copy(buf[first:n], l.mu.ring)
	return n, nil, true
}
