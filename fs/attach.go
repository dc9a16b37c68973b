package fs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
)

// shared is what a Server has only if Attach made it; else it is zero.
type shared struct {
	refs   *refs // what the kernel holds of the engine
	mounts *Mounts
	mount  uint32 // number among mounts
	epoch  uint64 // part of each node's number, see epoch.go

	kept         kept
	firstBacking int32 // where the numbers of our backing files begin
	proc         int   // /proc of the mount; -1 if it is ours

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
	if err := s.attach(mounts, x); err != nil {
		s.cancel()
		return nil, fmt.Errorf("attach %s: %w", x.Dir, err)
	}
	return s, nil
}

func (s *Server) attach(mounts *Mounts, x *Session) error {
	if x.Epoch == 0 || x.Epoch > maxEpoch {
		return fmt.Errorf("owner number %d of the mount: want 1 to %d", x.Epoch, maxEpoch)
	}
	s.shared.refs, s.shared.mounts, s.shared.epoch = newRefs(), mounts, uint64(x.Epoch)<<epochShift
	s.pidMask = threadMask
	if err := mounts.number(s); err != nil {
		return err
	}
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
		mounts.remove(s)
		return err
	}
	if from := s.kept.firstBacking; from > 0 && s.direct.Load() {
		s.wg.Go(func() { s.dropBackings(from) }) // ends by itself, or with Detach
	}
	mounts.add(s)
	s.start()
	return nil
}

// attachProcesses finds out where the processes that use the mount can be seen.
func (s *Server) attachProcesses(x *Session) (err error) {
	if s.proc, err = duplicate(x.Proc); err != nil {
		return err
	}
	if s.proc >= 0 {
		// Not of /proc/self: its first thread may be that of notices, see isolate.go.
		s.procs = procfs(fmt.Sprintf("/proc/thread-self/fd/%d", s.proc))
	}
	if x.SameProcess != nil {
		s.procs = askedProcs{s.procs, x.SameProcess}
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

// sessionDevice makes a device with descriptors of its own of a session. Requests are read
// from poll alone.
func sessionDevice(s *Server, x *Session, o *fuse.MountOptions) (*device, error) {
	d := newDevice(s, -1, o)
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

// await sleeps until there is a request, and reads it. It returns 0 when the leader is to
// end: a read that sleeps could not be ended, and would take a request from the next owner.
func (d *device) await(in []byte) (int, error) {
	fds := [2]unix.PollFd{{Fd: int32(d.poll), Events: unix.POLLIN}, {Fd: int32(d.wake), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds[:], -1); err != nil {
		return 0, err
	}
	if fds[1].Revents != 0 {
		return 0, nil
	}
	return unix.Read(d.poll, in)
}

// halt ends the leader, once it has answered what it has read.
func (d *device) halt() {
	d.closing.Store(true)
	one := uint64(1)
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	if _, err := unix.Write(d.wake, buf); err != nil {
		d.log.Error("wake the reader of requests", zap.Error(err))
	}
}

// SessionInit returns what the mount process has to keep for the next owner: Session.Init.
func (s *Server) SessionInit() []byte {
	k := s.kept
	if s.direct.Load() {
		k.firstBacking = s.firstBacking
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
		s.mounts.silence(s)
		// A notice may wait in the kernel for a client who waits for us, so it comes first.
		s.notices.close()
		s.telling.Wait()
		s.cancel()
		d.halt()
		<-s.served
		s.wg.Wait()
		s.refs.end()
		s.giveBack()
		s.mounts.remove(s)
		if s.backings != nil {
			s.backings.dropAll()
		}
		d.close()
		s.closeProc()
	})
}
