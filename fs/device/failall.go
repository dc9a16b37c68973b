package device

import (
	"context"
	"os"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// FailAll answers every request of a session with an error until ctx ends. The mount process
// runs it while there is no owner. Look-ups, opens and stats find nothing, which clients of a
// cache take for a miss; everything else is EIO. The kernel goes on reading and writing what
// clients have open. Requests that an owner left unanswered are answered, too.
//
// FailAll returns nil when ctx has ended or the mount is gone. If no owner has answered the
// kernel's first request, FailAll answers it and sets x.Init.
func FailAll(ctx context.Context, x *Session) error {
	log := zap.NewNop()
	o := (&Options{MaxWrite: x.maxWrite, Logger: log}).protocol(false)
	if x.Init != nil {
		k, err := decodeKept(x.Init)
		if err != nil {
			return err
		}
		o.MaxWrite = int(k.settings().MaxWrite)
	}
	d, err := sessionLoop(x, nothing{fuse.NewDefaultRawFileSystem()}, o, log)
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

// nothing is the Files of a mount without an owner. Only INIT reaches it.
type nothing struct{ fuse.RawFileSystem }

// OpenLater implements Files.
func (nothing) OpenLater(*fuse.OpenIn, *fuse.OpenOut, Reply) (fuse.Status, bool) {
	return fuse.ENOSYS, false
}

// Earlier implements Files.
func (nothing) Earlier(uint32) fuse.Status { return fuse.ENOSYS }

// failAll answers until it is halted or the mount is gone.
func (d *loop) failAll() error {
	w := d.newWorker()
	defer w.free()
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

// failure returns the answer to a request of a kind when there is no owner. reply is false for
// requests that get no answer.
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
