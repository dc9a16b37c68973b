package fs

import (
	"context"
	"os"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// FailAll answers every request of a session with an error until ctx ends: in the mount
// process, while there is no owner. Look-ups, opens and stats find nothing, which clients of
// a cache take for a miss; all else is EIO. What clients have open is read and written by the
// kernel as before. Requests that an owner left unanswered are answered, too.
//
// It returns nil when ctx has ended or the mount is gone. If no owner has answered the kernel's
// first request, it does so itself, and sets x.Init.
func FailAll(ctx context.Context, x *Session) error {
	s := newServer(nil, Options{MaxWrite: x.maxWrite}) // only for the options of the protocol
	defer s.cancel()
	o := s.mountOptions()
	if x.Init != nil {
		k, err := decodeKept(x.Init)
		if err != nil {
			return err
		}
		o.MaxWrite = int(k.settings().MaxWrite)
	}
	d, err := sessionDevice(s, x, o)
	if err != nil {
		return err
	}
	defer d.closeFiles()
	if err := resend(d.fd); err != nil {
		return err
	}
	if x.Init == nil {
		k, err := hello(d.poll, d.size, d.ps)
		if err != nil {
			return err
		}
		x.Init = k.encode()
	}
	halted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { d.halt(); close(halted) })
	defer func() {
		if !stop() {
			<-halted
		}
	}()
	return d.failAll()
}

// failAll answers until it is halted or the mount is gone.
func (d *device) failAll() error {
	w := d.newWorker()
	for {
		n, err := d.await(w.in)
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN, unix.ENOENT:
			continue
		case unix.ENODEV:
			return nil
		default:
			return os.NewSyscallError("read /dev/fuse", err)
		}
		if n == 0 {
			return nil
		}
		h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
		if st, reply := failure(h.Opcode); reply {
			w.reply(d.poll, w.head(h.Unique, st, 0))
		}
	}
}

// failure returns the answer to a request of that kind when there is no owner; reply says
// whether there is any.
func failure(opcode uint32) (st fuse.Status, reply bool) {
	switch opcode {
	case opcodeForget, opcodeBatchForget, opcodeInterrupt:
		return fuse.OK, false
	case opcodeRelease, opcodeReleasedir:
		return fuse.OK, true
	case opcodeLookup, opcodeGetattr, opcodeOpen, opcodeOpendir, opcodeAccess:
		return fuse.ENOENT, true
	}
	return fuse.EIO, true
}
