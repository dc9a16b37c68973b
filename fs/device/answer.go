package device

import (
	"errors"
	"os"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// answer begins the protocol on a session, or continues it after an earlier owner.
func answer(x *Session, files Files, options *Options) (d *loop, k kept, err error) {
	o := options.protocol(false)
	if x.Init != nil {
		if k, err = decodeKept(x.Init); err != nil {
			return nil, k, err
		}
		o.MaxWrite = int(k.settings().MaxWrite) // requests may be that long
	}
	if d, err = sessionLoop(x, files, o, options.Logger); err != nil {
		return nil, k, err
	}
	if x.Init != nil || x.Epoch > 1 {
		err = d.takeOver()
	}
	switch {
	case err != nil:
	case x.Init == nil:
		k, err = hello(d.poll, d.size, d.ps)
	default:
		// The protocol layer learns what the kernel can do. The kernel got this answer long
		// ago.
		out := make([]byte, d.size)
		if _, st := d.ps.HandleRequest([][]byte{k.request}, [][]byte{out}); st != fuse.OK {
			err = errors.New("the kept INIT cannot be read")
		}
	}
	if err != nil {
		d.closeFiles()
		return nil, k, err
	}
	d.init = k.flags()
	return d, k, nil
}

// sessionLoop makes a loop of a session, with descriptors of its own.
func sessionLoop(x *Session, files Files, o *fuse.MountOptions, log *zap.Logger) (*loop, error) {
	d := newLoop(files, o, log)
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
	if d.proc, err = duplicate(x.Proc); d.proc < 0 || err != nil {
		d.proc, _ = unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // -1 if that fails
	}
	d.ps = fuse.NewProtocolServer(files, o)
	return d, nil
}
