package directio

import (
	"sync"

	"golang.org/x/sys/unix"
)

// openPread starts the engine that does each piece by pread, pwrite or fdatasync in
// one of o.Threads goroutines. They end when the engine is closed and the kernel is
// done with the piece they hold.
func openPread(o Options) Engine {
	s := newScheduler(EnginePread, o.Threads, o)
	startWorkers(s, o.Threads, func(p *piece) {
		n, err := p.transfer()
		s.finish(p, n, err)
	})
	return s
}

// startWorkers starts n goroutines that hand pieces of s to do until s is closed and
// every piece is finished, which do must see to. s.gone is closed then.
func startWorkers(s *scheduler, n int, do func(*piece)) {
	work := sync.NewCond(&s.mu.Mutex)
	s.wake = work.Signal
	s.stop = work.Broadcast
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for {
				p := s.takeWait(work)
				if p == nil {
					return
				}
				do(p)
			}
		})
	}
	go func() {
		workers.Wait()
		close(s.gone)
	}()
}

// takeWait returns the next piece, nil once s is drained. It passes the wake-up on
// while there is more to take.
func (s *scheduler) takeWait(work *sync.Cond) *piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if p := s.takeLocked(); p != nil {
			if s.anyLocked() {
				work.Signal()
			}
			return p
		}
		if s.drainedLocked() {
			return nil
		}
		work.Wait()
	}
}

// transfer does what is left of p by a system call and returns its result.
func (p *piece) transfer() (int, unix.Errno) {
	op := p.req.op
	var n int
	var err error
	switch op.Kind {
	case Read:
		n, err = unix.Pread(op.File.fd, p.rest(), p.offset())
	case Write:
		n, err = unix.Pwrite(op.File.fd, p.rest(), p.offset())
	case Sync:
		err = unix.Fdatasync(op.File.fd)
	}
	if err != nil {
		return 0, toErrno(err)
	}
	return n, 0
}

// toErrno returns err, which a wrapper of package unix has returned, as the errno
// it is.
func toErrno(err error) unix.Errno {
	if errno, ok := err.(unix.Errno); ok {
		return errno
	}
	return unix.EIO
}
