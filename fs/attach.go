package fs

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
)

// Attach answers the requests of a mount that another process made. The kernel reads and writes
// blocks in memory itself, as with Mount. Several mounts may share an engine if it was opened
// with Options.Kernels and the callbacks of one Mounts. The mount answers once Attach returns.
// Attach ignores opts.Dir.
//
// If an earlier owner answered the mount, Attach also answers the requests which that owner
// left unanswered; doc.go says what becomes of open files. The earlier owner must have ended,
// or returned from Detach: two owners never answer one mount.
func Attach(engine *tiers.Engine, mounts *Mounts, x *device.Session, opts Options) (*Server, error) {
	opts.Dir = x.Dir
	s := newServer(engine, opts)
	s.files.refs, s.mounts = newRefs(), mounts
	err := mounts.number(s.files)
	if err == nil {
		if err = s.attach(x); err != nil {
			mounts.remove(s.files)
		}
	}
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("attach %s: %w", x.Dir, err)
	}
	mounts.add(s.files)
	s.conn.Start()
	return s, nil
}

// Resume is Mount for a mount that another process has answered and handed over (HandOver).
// Resume also answers the requests which that process left unanswered, opens of blocks after the self-test;
// doc.go says what becomes of open files. The server takes the session, except if Resume fails, for example in SelfTest.
// Resume ignores opts.Dir.
func Resume(engine *tiers.Engine, hooks *Hooks, x *device.Session, opts Options) (*Server, error) {
	opts.Dir = x.Dir
	s := newServer(engine, opts)
	if err := s.attach(x); err != nil {
		s.cancel()
		return nil, fmt.Errorf("resume %s: %w", x.Dir, err)
	}
	s.own = x
	s.files.stale.resume(x.Stale)
	hooks.files.Store(s.files)
	s.files.tested = make(chan struct{})
	s.conn.Start()
	if err := s.selfTest(); err != nil {
		s.Detach()
		return nil, err
	}
	close(s.files.tested)
	return s, nil
}

// attach makes everything that answering a session needs. It leaves nothing behind if it fails.
func (s *Server) attach(x *device.Session) error {
	err := s.attachProcesses(x)
	if err != nil {
		return err
	}
	c, err := device.Answer(x, s.files, s.connection())
	if err != nil {
		s.closeProc()
		return err
	}
	s.conn, s.files.kernel, s.files.epoch = c, c, c.Epoch()
	if err := s.choosePath(); err != nil {
		c.Discard()
		s.closeProc()
		return err
	}
	b := s.files.backings
	if b == nil {
		return nil
	}
	if from := c.FirstBacking(); from > 0 {
		s.wg.Go(func() { b.dropLater(s.files.ctx, from) }) // ends by itself, or with the mount
	} else {
		b.alone.Store(true)
	}
	return nil
}

// attachProcesses finds out where the processes that use the mount can be seen.
func (s *Server) attachProcesses(x *device.Session) (err error) {
	if s.proc, err = x.OpenProc(); s.proc != nil {
		// Not of /proc/self: its first thread may be that of notices, see package device.
		s.files.procs = &procfs{root: fmt.Sprintf("/proc/thread-self/fd/%d", s.proc.Fd())}
	}
	return err
}

func (s *Server) closeProc() {
	if s.proc != nil {
		s.proc.Close()
	}
}

// SessionInit returns Session.Init, which the mount process keeps for the next owner.
func (s *Server) SessionInit() []byte {
	if !s.files.direct.Load() {
		return s.conn.Keep(0)
	}
	return s.conn.Keep(s.files.backings.inherited())
}

// Detach ends the answers: the mount process is gone, or the mount gets another owner. It gives the
// engine back all that the kernel held: references, handles, pins. Files that were being written are
// not committed. The kernel goes on reading and writing what clients have open. Requests that wait for
// something are left to the next owner; the others are answered. Detach may be called more than once.
func (s *Server) Detach() {
	s.detach.Do(func() {
		f := s.files
		f.listings.drain()
		if f.backings != nil && s.own != nil {
			f.backings.dropIdle()       // most of them, while requests are still answered
			f.backings.left.Store(true) // see dropLater
		}
		if s.mounts != nil {
			s.mounts.silence(f)
		}
		s.conn.Leave(s.cancel)
		s.wg.Wait()
		f.control.dir.Wait()
		f.giveBack()
		if s.mounts != nil {
			s.mounts.remove(f)
		}
		if f.backings != nil {
			f.backings.dropAll()
		}
		s.conn.Close()
		s.closeProc()
	})
}

// ErrNoHandOver reports that no other process can answer this mount.
var ErrNoHandOver = errors.New("this mount cannot be handed over")

// Lasting returns nil if HandOver is possible, else an ErrNoHandOver with the reason.
func (s *Server) Lasting() error {
	switch {
	case s.own == nil && s.files.splice:
		return fmt.Errorf("%w: it splices: it was made without root, or with passthrough off", ErrNoHandOver)
	case s.own == nil:
		return fmt.Errorf("%w: another process made it", ErrNoHandOver)
	case !s.conn.Resends():
		return fmt.Errorf("%w: the kernel cannot send requests again (Linux before 6.9)", ErrNoHandOver)
	}
	return nil
}

// HandOver ends the answers of a mount of this process, and returns the session with which
// another process can Resume. It commits no file that was being written. Unlike Detach, it does
// not give the kernel's references back one by one: close the engine next, before another
// process resumes. Call HandOver once.
func (s *Server) HandOver() (*device.Session, error) {
	if err := s.Lasting(); err != nil {
		return nil, err
	}
	x := *s.own
	s.Detach()
	x.Init, x.Epoch = s.SessionInit(), x.Epoch+1
	x.Stale = s.files.stale.underway()
	return &x, nil
}
