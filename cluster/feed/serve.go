package feed

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// readRecords is how many records are copied from the ring with its lock held, which takes some
// microseconds. They are encoded without the lock.
const readRecords = 128

// tellSkipped is the part of the ring after which a subscriber is told that the log has gone on outside of its scope. So
// its position does not leave the ring.
const tellSkipped = 4

// Serve sends the log to one subscriber: from the given position if it is still there, else a
// snapshot first. It runs until ctx ends, send fails, the snapshot fails, or the Log is closed, and
// returns that error. A subscriber that the ring overtakes gets a new snapshot.
//
// send is called from this goroutine. It may block, and may keep the batch. Besides the batches
// that send keeps, Serve uses the memory of one batch.
func (l *Log) Serve(ctx context.Context, from Position, snapshot Snapshotter, send func(*Batch) error) error {
	return l.serve(&server{Log: l, ctx: ctx, snapshot: snapshot, send: send}, from)
}

// ServeParts is Serve for a subscriber that compares digests. Only if from is zero, it sends a
// snapshot. Otherwise it first sends these parts, if any, and then the log from the given position.
// It ends with ErrGap if that position is not there, or if the ring overtakes the subscriber.
//
// A snapshot of parts has only what the node holds, and no graves. With a scope, the subscriber gets records of keys in
// these parts only, and all graves.
func (l *Log) ServeParts(ctx context.Context, from Position, parts, scope Parts, snapshot Snapshotter, send func(*Batch) error) error {
	s := &server{Log: l, ctx: ctx, snapshot: snapshot, send: send, compares: true, parts: parts, scope: scope}
	return l.serve(s, from)
}

func (l *Log) serve(s *server, from Position) error {
	l.counters.subscribers.Add(1)
	defer l.counters.subscribers.Add(-1)
	s.timer = time.NewTimer(0)
	defer s.timer.Stop()
	l.enter(s)
	defer l.leave(s)
	if err := s.err(); err != nil {
		return err
	}
	resume := from.Epoch == l.o.Epoch && l.has(from.Next)
	if s.compares && !resume && (from != (Position{}) || len(s.parts) > 0) {
		return ErrGap
	}
	if resume {
		l.counters.resumed.Add(1)
		s.next = from.Next
		s.sent.Store(s.next)
	}
	for {
		if !resume || len(s.parts) > 0 {
			if err := s.sendSnapshot(); err != nil {
				return err
			}
		}
		if err := s.sendDeltas(); err != errOvertaken {
			return err
		}
		// However fast the ring goes round, each completed snapshot brings the subscriber to the
		// state at its begin. So a snapshot is not broken off, and a rest follows each one.
		l.counters.overran.Add(1)
		if s.compares {
			return ErrGap
		}
		resume = false
	}
}

// errOvertaken says that unsent records have left the ring.
var errOvertaken = fmt.Errorf("%w: overtaken", ErrOutOfStep)

// has reports whether a subscriber that saw all records before next can go on.
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
	compares bool  // ErrGap rather than another snapshot
	parts    Parts // to be sent first
	scope    Parts // nil: everything
	timer    *time.Timer
	next     uint64        // number of the first record that was not sent, once no snapshot is under way
	sent     atomic.Uint64 // next, for Lag; during a snapshot that of its begin

	scratch [readRecords]Record // read records that do not fit the previous batch
	unsent  []Record            // of scratch
	batch   Batch
	enc     encoder
}

// fits reports whether the batch under way has room for r.
func (s *server) fits(r *Record) bool {
	return s.batch.Count == 0 || len(s.batch.Records)+bound(r) <= s.o.BatchBytes
}

// wants reports whether a record is in the scope of the subscriber.
func (s *server) wants(r *Record) bool {
	return s.scope == nil || r.Op == Bury || s.scope.Holds(r.Hash)
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

// err returns why Serve must end, or nil.
func (s *server) err() error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
		return s.ctx.Err()
	}
}

// sendSnapshot sends what the node holds. It takes the position to resume from before it begins, so
// that changes meanwhile are sent again. If parts were asked for, it sends only these; the others
// are as the subscriber knows them at its position, so it goes on from there.
func (s *server) sendSnapshot() error {
	s.counters.snapshots.Add(1)
	parts := s.parts
	s.parts = nil
	after := Position{s.o.Epoch, s.next}
	if parts == nil {
		after = s.Position()
	}
	s.sent.Store(after.Next)
	s.batch = Batch{Begin: true, Partial: parts != nil, Position: Position{Epoch: s.o.Epoch}}
	if err := s.sendHeld(parts); err != nil {
		return fmt.Errorf("snapshot for a subscriber: %w", err)
	}
	s.batch.End, s.batch.Position = true, after
	s.next = after.Next
	if err := s.flush(); err != nil {
		return err
	}
	return s.rest()
}

// sendHeld sends what the node holds, all or parts, except the last batch.
func (s *server) sendHeld(parts Parts) error {
	if parts != nil {
		found, err := s.look(s.ctx, parts, s.scope, s.snapshot)
		if err != nil || !found.tooMuch {
			return errors.Join(err, s.sendFound(found))
		}
	}
	return s.snapshot(s.ctx, func(r *Record) error {
		if parts != nil && (r.Op != Hold || !parts.Holds(r.Hash)) || !s.wants(r) {
			return nil
		}
		if !s.fits(r) {
			if err := s.nextBatch(parts); err != nil {
				return err
			}
			s.batch.Records = make([]byte, 0, s.o.BatchBytes) // the next batch is probably as full
		}
		s.add(r)
		return nil
	})
}

// sendFound sends what a look has found, except the last batch.
func (s *server) sendFound(found *want) error {
	if found == nil {
		return nil
	}
	for i := range found.batches {
		if i > 0 {
			if err := s.nextBatch(found.parts); err != nil {
				return err
			}
		}
		s.batch.Records, s.batch.Count = found.batches[i].Records, found.batches[i].Count
	}
	return nil
}

// nextBatch sends the batch under way, and begins the next one of a snapshot.
func (s *server) nextBatch(parts Parts) error {
	if err := s.flush(); err != nil {
		return err
	}
	s.batch.Position.Epoch, s.batch.Partial = s.o.Epoch, parts != nil
	return nil
}

// sendDeltas sends records from next on until something fails, or with errOvertaken.
func (s *server) sendDeltas() error {
	for {
		wake, err := s.gather()
		if err != nil && s.batch.Count == 0 {
			return err
		}
		if s.batch.Count == 0 && s.batch.Skipped < uint64(s.o.Records)/tellSkipped {
			s.sent.Store(s.next + s.batch.Skipped)
			select {
			case <-wake:
				continue
			case <-s.ctx.Done():
				return s.ctx.Err()
			case <-s.closed:
				return ErrClosed
			}
		}
		s.next += uint64(s.batch.Count) + s.batch.Skipped
		s.batch.Position = Position{s.o.Epoch, s.next}
		if err := s.flush(); err != nil {
			return err
		}
		s.sent.Store(s.next)
		if len(s.unsent) > 0 {
			continue // that batch was full: more records wait
		}
		if err := s.rest(); err != nil {
			return err
		}
	}
}

// gather fills the batch with records from next on. It returns when the batch is full or there are
// no more records; then wake is closed at the next record.
func (s *server) gather() (wake <-chan struct{}, err error) {
	for {
		for len(s.unsent) > 0 {
			switch r := &s.unsent[0]; {
			case !s.wants(r):
				s.batch.Skipped++
			case !s.fits(r):
				return nil, nil
			default:
				s.add(r)
			}
			s.unsent = s.unsent[1:]
		}
		n, wake, ok := s.read(s.next+uint64(s.batch.Count)+s.batch.Skipped, s.scratch[:])
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
