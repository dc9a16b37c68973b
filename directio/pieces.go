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

// nextLocked returns the parked piece to take next, or else the request to cut the next piece from.
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
	// A piece that does not fit waits for room, even if one behind it would fit. Otherwise it would
	// wait for ever.
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

// mayJoinLocked reports whether the limits of a class allow another piece of cost bytes, if there
// is room.
func (s *scheduler) mayJoinLocked(class int, cost int64) bool {
	return class == 0 || within(s.mu.load[1], cost, s.writes)
}

// within reports whether one more piece of cost bytes keeps to limit.
func within(load limits, cost int64, limit limits) bool {
	return load.pieces < limit.pieces && load.bytes+cost <= limit.bytes
}

// cutLocked takes p off its request. With its last piece a request leaves its queue.
func (s *scheduler) cutLocked(p *piece) {
	r := p.req
	r.cut += p.size
	r.pieces++
	if r.cut == r.size {
		r.queued = false
		s.mu.queues[r.op.Kind.class()].remove(&r.links)
	}
}

// chargeLocked keeps the account between reads and writes. It counts only bytes that went ahead of
// a waiting request.
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

// finish returns a piece that the kernel is done with. The piece moved n bytes, or failed with
// errno if that is not 0. There may then be another piece to take.
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

// drainedLocked reports whether s is closed and nothing is in flight. The goroutines of the engine
// may then end.
func (s *scheduler) drainedLocked() bool { return s.mu.closed && s.mu.flying.first == nil }

// settleLocked applies the verdict v to p.
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

// stopLocked returns why r must stop, or nil if it may go on.
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

// parkLocked lets p be taken again after a while.
func (s *scheduler) parkLocked(p *piece, after time.Duration) {
	p.parked, p.ready = true, after == 0
	s.mu.parked.push(p, &p.links)
	if !p.ready {
		time.AfterFunc(after, func() { s.unpark(p) })
	}
}

// unpark lets a parked piece be taken again after its wait.
func (s *scheduler) unpark(p *piece) {
	s.mu.Lock()
	p.ready = true
	s.mu.Unlock()
	s.wake()
}

// oldest returns the fields of a log line about the piece that has been with the kernel for
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
