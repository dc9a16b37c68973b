package feed

import (
	"context"
	"fmt"
	"time"
)

// readRecords is how many records are copied out of the ring with its lock held: some
// microseconds. They are encoded without it.
const readRecords = 128

// Serve sends the log to one subscriber, from the given position on if it is still
// there, else a snapshot first, until ctx ends, send fails, the snapshot fails, or the
// Log is closed, and returns that error. A subscriber so slow that the ring overtakes it
// gets a new snapshot.
//
// send is called from this goroutine; it may block, and may keep the batch. Memory is
// bounded by one batch, of those that send does not keep.
func (l *Log) Serve(ctx context.Context, from Position, snapshot Snapshotter, send func(*Batch) error) error {
	l.counters.subscribers.Add(1)
	defer l.counters.subscribers.Add(-1)
	s := &server{Log: l, ctx: ctx, snapshot: snapshot, send: send, timer: time.NewTimer(0)}
	defer s.timer.Stop()
	if err := s.err(); err != nil {
		return err
	}
	resume := from.Epoch == l.o.Epoch && l.has(from.Next)
	if resume {
		l.counters.resumed.Add(1)
		s.next = from.Next
	}
	for {
		if !resume {
			if err := s.sendSnapshot(); err != nil {
				return err
			}
		}
		if err := s.sendDeltas(); err != errOvertaken {
			return err
		}
		// However fast the ring goes round, each snapshot that ends makes the subscriber
		// know all that was so when it began; so it is not broken off, and as there is a
		// rest after each, they are not without a pause.
		l.counters.overran.Add(1)
		resume = false
	}
}

// errOvertaken says that records which were not sent yet have left the ring.
var errOvertaken = fmt.Errorf("%w: overtaken", ErrOutOfStep)

// has reports whether a subscriber that saw all before next can go on.
func (l *Log) has(next uint64) bool {
	_, _, ok := l.read(next, nil)
	return ok
}

// server is one Serve.
type server struct {
	*Log
	ctx      context.Context
	snapshot Snapshotter
	send     func(*Batch) error
	timer    *time.Timer
	next     uint64 // number of the first record that was not sent, once no snapshot is under way

	scratch [readRecords]Record // what was read but does not fit the batch before
	unsent  []Record            // of scratch
	batch   Batch
	enc     encoder
}

// fits reports whether the batch under way has room for r.
func (s *server) fits(r *Record) bool {
	return s.batch.Count == 0 || len(s.batch.Records)+bound(r) <= s.o.BatchBytes
}

// add puts r into the batch under way.
func (s *server) add(r *Record) {
	s.batch.Records = s.enc.append(s.batch.Records, r)
	s.batch.Count++
}

// flush sends the batch under way and begins the next.
func (s *server) flush() error {
	if err := s.err(); err != nil {
		return err
	}
	b := s.batch
	s.batch, s.enc = Batch{}, encoder{}
	if err := s.send(&b); err != nil {
		return fmt.Errorf("sending to a subscriber: %w", err)
	}
	c := &s.counters
	c.batches.Add(1)
	c.records.Add(uint64(b.Count))
	c.bytes.Add(uint64(len(b.Records)))
	return nil
}

// err returns why Serve is to end.
func (s *server) err() error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
		return s.ctx.Err()
	}
}

// sendSnapshot sends what the node holds. The place to go on from is taken before it
// begins, so that what changes meanwhile is told again.
func (s *server) sendSnapshot() error {
	s.counters.snapshots.Add(1)
	after := s.Position()
	s.batch = Batch{Begin: true, Position: Position{Epoch: s.o.Epoch}}
	err := s.snapshot(s.ctx, func(r *Record) error {
		if !s.fits(r) {
			if err := s.flush(); err != nil {
				return err
			}
			s.batch.Position.Epoch = s.o.Epoch
			s.batch.Records = make([]byte, 0, s.o.BatchBytes) // the next is likely as full
		}
		s.add(r)
		return nil
	})
	if err != nil {
		return fmt.Errorf("snapshot for a subscriber: %w", err)
	}
	s.batch.End, s.batch.Position = true, after
	s.next = after.Next
	if err := s.flush(); err != nil {
		return err
	}
	return s.rest()
}

// sendDeltas sends records from next on until something fails, or with errOvertaken.
func (s *server) sendDeltas() error {
	for {
		wake, err := s.gather()
		if err != nil && s.batch.Count == 0 {
			return err
		}
		if s.batch.Count == 0 {
			select {
			case <-wake:
				continue
			case <-s.ctx.Done():
				return s.ctx.Err()
			case <-s.closed:
				return ErrClosed
			}
		}
		s.next += uint64(s.batch.Count)
		s.batch.Position = Position{s.o.Epoch, s.next}
		if err := s.flush(); err != nil {
			return err
		}
		if len(s.unsent) > 0 {
			continue // that one was full: more is waiting
		}
		if err := s.rest(); err != nil {
			return err
		}
	}
}

// gather fills the batch with records from next on. It returns when the batch is full or
// there are no more, when wake is closed at the next.
func (s *server) gather() (wake <-chan struct{}, err error) {
	for {
		for len(s.unsent) > 0 {
			if !s.fits(&s.unsent[0]) {
				return nil, nil
			}
			s.add(&s.unsent[0])
			s.unsent = s.unsent[1:]
		}
		n, wake, ok := s.read(s.next+uint64(s.batch.Count), s.scratch[:])
		if !ok {
			return nil, errOvertaken
		}
		if n == 0 {
			return wake, nil
		}
		s.unsent = s.scratch[:n]
	}
}

// rest waits for the interval.
func (s *server) rest() error {
	s.timer.Reset(s.interval())
	select {
	case <-s.timer.C:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-s.closed:
		return ErrClosed
	}
}
