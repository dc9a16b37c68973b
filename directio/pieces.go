package directio

import (
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// takeLocked returns the next piece, nil if there is none that may go now.
func (s *scheduler) takeLocked() *piece {
	p, r := s.nextLocked()
	switch {
	case p != nil:
		s.mu.parked.remove(&p.links)
		p.parked = false
	case r != nil:
		p = &piece{req: r, start: r.cut, size: s.headBytes(r)}
		s.chargeLocked(r.op.Kind.class(), int64(p.size))
		s.cutLocked(p)
	default:
		return nil
	}
	load := &s.mu.load[p.req.op.Kind.class()]
	load.pieces++
	load.bytes += int64(p.size - p.moved)
	s.mu.stats.InFlight++
	s.mu.stats.InFlightPeak = max(s.mu.stats.InFlightPeak, s.mu.stats.InFlight)
	p.began = time.Now()
	s.mu.flying.push(p, &p.links)
	return p
}

// anyLocked reports whether take would return a piece.
func (s *scheduler) anyLocked() bool {
	p, r := s.nextLocked()
	return p != nil || r != nil
}

// nextLocked returns the piece to take, if a parked one is next, or the request to
// cut it from.
func (s *scheduler) nextLocked() (*piece, *request) {
	for n := s.mu.parked.first; n != nil; n = n.next {
		p := n.value
		class, cost := p.req.op.Kind.class(), int64(p.size-p.moved)
		if !p.ready || !s.mayJoinLocked(class, cost) {
			continue
		}
		if !s.fitsLocked(cost) {
			return nil, nil
		}
		return p, nil
	}
	read, write := s.headLocked(0), s.headLocked(1)
	if write != nil && !s.mayJoinLocked(1, int64(s.headBytes(write))) {
		write = nil
	}
	r := read
	if read == nil || write != nil && s.mu.credit >= readShare*int64(s.headBytes(write)) {
		r = write
	}
	// What does not fit waits for room, even if something behind it would fit, or
	// it would wait for ever.
	if r == nil || !s.fitsLocked(int64(s.headBytes(r))) {
		return nil, nil
	}
	return nil, r
}

// headLocked returns the first request of a queue, nil if there is none.
func (s *scheduler) headLocked(class int) *request {
	if n := s.mu.queues[class].first; n != nil {
		return n.value
	}
	return nil
}

// headBytes returns the size of the next piece of r.
func (s *scheduler) headBytes(r *request) int { return min(r.size-r.cut, s.chunkBytes) }

// fitsLocked reports whether there is room for another piece of cost bytes.
func (s *scheduler) fitsLocked(cost int64) bool {
	reads, writes := s.mu.load[0], s.mu.load[1]
	return within(limits{reads.pieces + writes.pieces, reads.bytes + writes.bytes}, cost, s.all)
}

// mayJoinLocked reports whether the pieces of a class may become more by one of cost
// bytes, room provided.
func (s *scheduler) mayJoinLocked(class int, cost int64) bool {
	return class == 0 || within(s.mu.load[1], cost, s.writes)
}

// within reports whether one more piece of cost bytes keeps to limit.
func within(load limits, cost int64, limit limits) bool {
	return load.pieces < limit.pieces && load.bytes+cost <= limit.bytes
}

// cutLocked takes p off its request, and the request off its queue with the last.
func (s *scheduler) cutLocked(p *piece) {
	r := p.req
	r.cut += p.size
	r.pieces++
	if r.cut == r.size {
		r.queued = false
		s.mu.queues[r.op.Kind.class()].remove(&r.links)
	}
}

// chargeLocked keeps the account between reads and writes. Only what went ahead of
// something that waits counts.
func (s *scheduler) chargeLocked(class int, cost int64) {
	switch {
	case class == 0 && s.mu.queues[1].first != nil:
		s.mu.credit = min(s.mu.credit+cost, readShare*int64(s.chunkBytes))
	case class == 1 && s.mu.queues[0].first != nil:
		s.mu.credit = max(s.mu.credit-readShare*cost, 0)
	default:
		s.mu.credit = 0
	}
}

// finish takes back a piece that the kernel is done with: it moved n bytes, or
// failed with errno, 0 if not. There may be something to take then.
func (s *scheduler) finish(p *piece, n int, errno unix.Errno) {
	s.mu.Lock()
	class := p.req.op.Kind.class()
	s.mu.flying.remove(&p.links)
	s.mu.load[class].pieces--
	s.mu.load[class].bytes -= int64(p.size - p.moved)
	s.mu.stats.InFlight--
	v := p.judge(n, errno)
	s.mu.stats.Continued += v.continued
	s.mu.stats.Retried += v.retried
	s.settleLocked(p, v)
	drained := s.drainedLocked()
	s.unlock()
	if drained {
		s.stop()
	}
}

// drainedLocked reports whether s is closed and nothing is in flight, so that the
// goroutines of the engine may end.
func (s *scheduler) drainedLocked() bool { return s.mu.closed && s.mu.flying.first == nil }

// settleLocked does with p what v says.
func (s *scheduler) settleLocked(p *piece, v verdict) {
	r := p.req
	if !v.done {
		if v.err = s.stopLocked(r); v.err == nil {
			s.parkLocked(p, v.after)
			return
		}
	}
	r.pieces--
	if v.err != nil {
		s.failLocked(r, p.start+p.moved, v.err)
		return
	}
	s.endLocked(r)
}

// stopLocked returns why nothing more of r is to be done, nil if nothing is in the way.
func (s *scheduler) stopLocked(r *request) error {
	switch {
	case r.err != nil:
		return r.err
	case r.batch.err != nil:
		return r.batch.err
	case s.mu.closed:
		return os.ErrClosed
	}
	return nil
}

// parkLocked has p taken again, after a while.
func (s *scheduler) parkLocked(p *piece, after time.Duration) {
	p.parked, p.ready = true, after == 0
	s.mu.parked.push(p, &p.links)
	if !p.ready {
		time.AfterFunc(after, func() { s.unpark(p) })
	}
}

// unpark lets a piece whose time has come be taken, if it is parked still.
func (s *scheduler) unpark(p *piece) {
	s.mu.Lock()
	p.ready = true
	s.mu.Unlock()
	s.wake()
}

// oldest returns the fields of a log line about the piece that is with the kernel for
// longest.
func (s *scheduler) oldest() []zap.Field {
	s.mu.Lock()
	defer s.mu.Unlock()
	fields := []zap.Field{
		zap.String("engine", s.name),
		zap.Int("in_flight", s.mu.load[0].pieces+s.mu.load[1].pieces),
	}
	if s.mu.flying.first == nil {
		return fields
	}
	p := s.mu.flying.first.value
	return append(fields,
		zap.Stringer("oldest", p.req.op.Kind),
		zap.String("file", p.req.op.File.Name()),
		zap.Int64("offset", p.offset()),
		zap.Int("bytes", p.size-p.moved),
		zap.Duration("age", time.Since(p.began)))
}
