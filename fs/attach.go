package fs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
)

// shared is what a Server has of a session. It is zero without one: of a mount that fusermount3
// made, or that splices.
type shared struct {
	own    *Session // of Mount and Resume, which keep it; nil with Attach
	refs   *refs    // what the kernel holds of the engine; nil if the engine has no other kernel
	mounts *Mounts  // nil likewise
	mount  uint32   // number among mounts; 0 if there are no others
	epoch  uint64   // part of each node's number, see epoch.go

	kept         kept
	firstBacking int32       // where the numbers of our backing files begin
	lowest       int32       // of those that were left to the next owner
	dropped      atomic.Bool // those of earlier owners are not registered any more
	proc         int         // /proc of the mount; -1 if it is ours
	device       uint64      // of the mount in our mount table; 0: unknown

	detach sync.Once
}

// Attach answers the requests of a mount that another process made, as Mount does with its
// own: what is in memory is read and written by the kernel itself. Several mounts may share an
// engine, if it is opened with Options.Kernels and the callbacks of one Mounts. The mount
// answers when Attach returns. Of opts, Dir is not used.
//
// If an earlier owner answered the mount, requests that it left unanswered are answered now;
// see doc.go for what becomes of open files. That owner must have ended, or returned from
// Detach: two never answer one mount.
func Attach(engine *tiers.Engine, mounts *Mounts, x *Session, opts Options) (*Server, error) {
	opts.Dir = x.Dir
	s := newServer(engine, opts)
	s.shared.refs, s.shared.mounts = newRefs(), mounts
	err := mounts.number(s)
	if err == nil {
		if err = s.attach(x); err != nil {
			mounts.remove(s)
		}
	}
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("attach %s: %w", x.Dir, err)
	}
	mounts.add(s)
	s.start()
	return s, nil
}

// Resume is Mount for a mount that is there already: another process has answered it, and handed
// it over (HandOver). What that one left unanswered is answered now; see doc.go for what becomes
// of open files. The session is the server's from now on; if Resume fails, for example in SelfTest, it
// is not. Of opts, Dir is not used.
func Resume(engine *tiers.Engine, hooks *Hooks, x *Session, opts Options) (*Server, error) {
	opts.Dir = x.Dir
	s := newServer(engine, opts)
	if err := s.attach(x); err != nil {
		s.cancel()
		return nil, fmt.Errorf("resume %s: %w", x.Dir, err)
	}
	s.own, s.device = x, x.device
	s.stale.resume(x.Stale)
	hooks.server.Store(s)
	s.start()
	if err := s.selfTest(); err != nil {
		s.Detach()
		return nil, err
	}
	return s, nil
}

// attach makes all that is needed to answer a session, and leaves nothing behind if it fails.
func (s *Server) attach(x *Session) error {
	if x.Epoch == 0 || x.Epoch > maxEpoch {
		return fmt.Errorf("owner number %d of the mount: want 1 to %d", x.Epoch, maxEpoch)
	}
	s.shared.epoch = uint64(x.Epoch) << epochShift
	err := s.attachProcesses(x)
	if err == nil {
		err = s.attachDevice(x)
	}
	if err == nil {
		if err = s.choosePath(); err != nil {
			s.channel.(*device).closeFiles()
		}
	}
	if err != nil {
		s.closeProc()
		return err
	}
	if from := s.kept.firstBacking; from > 0 && s.direct.Load() {
		s.wg.Go(func() { s.dropLater(from) }) // ends by itself, or with the mount
	} else {
		s.dropped.Store(true)
	}
	return nil
}

// attachProcesses finds out where the processes that use the mount can be seen.
func (s *Server) attachProcesses(x *Session) (err error) {
	if s.proc, err = duplicate(x.Proc); err != nil {
		return err
	}
	if s.proc >= 0 {
		// Not of /proc/self: its first thread may be that of notices, see isolate.go.
		s.procs = &procfs{root: fmt.Sprintf("/proc/thread-self/fd/%d", s.proc)}
	}
	return nil
}

func (s *Server) closeProc() {
	if s.proc >= 0 {
		unix.Close(s.proc)
	}
}

// attachDevice begins, or goes on with, the protocol.
func (s *Server) attachDevice(x *Session) error {
	o := s.mountOptions()
	if x.Init != nil {
		var err error
		if s.kept, err = decodeKept(x.Init); err != nil {
			return err
		}
		o.MaxWrite = int(s.kept.settings().MaxWrite) // requests may be that long
	}
	d, err := sessionDevice(s, x, o)
	if err != nil {
		return err
	}
	if x.Init != nil || x.Epoch > 1 {
		err = d.takeOver()
	}
	switch {
	case err != nil:
	case x.Init == nil:
		s.kept, err = hello(d.poll, d.size, d.ps)
	default:
		// The protocol layer learns what the kernel can; its answer was given long ago.
		out := make([]byte, d.size)
		if _, st := d.ps.HandleRequest([][]byte{s.kept.request}, [][]byte{out}); st != fuse.OK {
			err = errors.New("the kept INIT cannot be read")
		}
	}
	if err != nil {
		d.closeFiles()
		return err
	}
	d.init = s.kept.flags()
	s.channel = d
	return nil
}

// sessionDevice makes a device with descriptors of its own of a session.
func sessionDevice(s *Server, x *Session, o *fuse.MountOptions) (*device, error) {
	d := newDevice(s, o)
	reads := x.Spin
	if reads == nil {
		reads = x.Dev
	}
	var err1, err2, err3 error
	d.fd, err1 = duplicate(x.Dev)
	d.poll, err2 = duplicate(reads)
	if err1 == nil && err2 == nil && (d.fd < 0 || d.poll < 0) {
		err1 = errors.New("a session without files")
	}
	d.wake, err3 = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	err := errors.Join(err1, err2, os.NewSyscallError("eventfd", err3))
	if err == nil {
		err = os.NewSyscallError("set non-blocking", unix.SetNonblock(d.poll, true))
	}
	if err != nil {
		d.closeFiles()
		return nil, err
	}
	d.ps = fuse.NewProtocolServer(s, o)
	return d, nil
}

// SessionInit returns what the mount process has to keep for the next owner: Session.Init.
func (s *Server) SessionInit() []byte {
	k := s.kept
	if s.direct.Load() && s.dropped.Load() {
		k.firstBacking = s.firstBacking
		if s.backings != nil && s.backings.left.Load() {
			k.firstBacking = s.lowest
		}
	}
	return k.encode()
}

// Detach ends the answers, because the mount process has gone, or is to have another
// owner, and gives back all that the mount's kernel held of the engine: references, handles,
// pins. Files that were being written are not committed. What clients have open is read and
// written by the kernel as before. Requests that wait for something are left to the next owner,
// others are answered. It may be called more than once.
func (s *Server) Detach() {
	s.detach.Do(func() {
		d := s.channel.(*device)
		s.listings.drain()
		if s.backings != nil && s.own != nil {
			s.backings.dropIdle()       // most of them, while requests are still answered
			s.backings.left.Store(true) // see dropLater
		}
		if s.mounts != nil {
			s.mounts.silence(s)
		}
		// A notice may wait in the kernel for a client who waits for us, so it comes first.
		s.notices.close()
		s.telling.Wait()
		d.leaving.Store(true)
		s.cancel()
		d.halt()
		<-s.served
		s.wg.Wait()
		s.control.dir.Wait()
		if s.backings != nil {
			s.backings.dropIdle() // from here on, handles end that clients have
		}
		if s.refs != nil {
			s.refs.end()
		}
		s.giveBack()
		if s.mounts != nil {
			s.mounts.remove(s)
		}
		if s.backings != nil {
			s.lowest = s.backings.dropAll(s.firstBacking)
		}
		d.close()
		s.closeProc()
	})
}

// ErrNoHandOver: this mount cannot be answered by another process.
var ErrNoHandOver = errors.New("this mount cannot be handed over")

// Lasting returns nil if HandOver is possible, and else an ErrNoHandOver with the reason.
func (s *Server) Lasting() error {
	switch {
	case s.own == nil && s.splice:
		return fmt.Errorf("%w: it splices: it was made without root, or with passthrough off", ErrNoHandOver)
	case s.own == nil:
		return fmt.Errorf("%w: another process made it", ErrNoHandOver)
	case !s.kept.resends():
		return fmt.Errorf("%w: the kernel cannot send requests again (Linux before 6.9)", ErrNoHandOver)
	}
	return nil
}

// HandOver ends the answers of a mount that this process has, and returns what another one needs
// to go on with them (Resume). What the kernel holds of the engine is not given back one by one,
// but files that were being written are not committed; else it is as Detach. The engine is to be
// closed next, before anybody resumes. It is called once.
func (s *Server) HandOver() (*Session, error) {
	if err := s.Lasting(); err != nil {
		return nil, err
	}
	x := *s.own
	s.Detach()
	x.Init, x.Epoch = s.SessionInit(), x.Epoch+1
	x.Stale = s.stale.underway()
	return &x, nil
}
