package replay

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Linux AIO, which NIXL's POSIX plugin uses, by its system calls: see
// include/uapi/linux/aio_abi.h.

// Transfer is one read or write of an AIO request.
type Transfer struct {
	File  File
	Write bool
	Off   int64
	P     []byte
}

// maxSubmit is how many transfers the plugin gives to the kernel at a time.
const maxSubmit = 64

// iocb is struct iocb of a little-endian machine.
type iocb struct {
	data        uint64
	_, _        uint32 // key, flags
	opcode      uint16
	_           int16 // priority
	fd          uint32
	buf, nbytes uint64
	offset      int64
	_           uint64
	_, _        uint32
}

// ioEvent is struct io_event.
type ioEvent struct {
	data, obj uint64
	res, res2 int64
}

// AIO is a context of the kernel, which one worker keeps for life.
type AIO uintptr

// NewAIO makes a context. It goes with the process.
func NewAIO() (AIO, error) {
	var ctx AIO
	if _, _, e := unix.Syscall(unix.SYS_IO_SETUP, maxSubmit, uintptr(unsafe.Pointer(&ctx)), 0); e != 0 {
		return 0, fmt.Errorf("io_setup: %w", e)
	}
	return ctx, nil
}

// Do carries out all transfers, and waits for them. One that moves fewer bytes
// than it should is an error here; the plugin would take it for success.
func (ctx AIO) Do(transfers []Transfer) error {
	for len(transfers) > 0 {
		n := min(len(transfers), maxSubmit)
		if err := ctx.batch(transfers[:n]); err != nil {
			return err
		}
		transfers = transfers[n:]
	}
	return nil
}

func (ctx AIO) batch(transfers []Transfer) error {
	cbs := make([]iocb, len(transfers))
	ptrs := make([]*iocb, len(transfers))
	var pin runtime.Pinner
	defer pin.Unpin()
	for i, t := range transfers {
		p := unsafe.SliceData(t.P)
		pin.Pin(p)
		pin.Pin(&cbs[i])
		ptrs[i] = &cbs[i]
		cbs[i] = iocb{
			data: uint64(i), fd: uint32(t.File), buf: uint64(uintptr(unsafe.Pointer(p))), nbytes: uint64(len(t.P)), offset: t.Off,
		}
		if t.Write {
			cbs[i].opcode = 1 // IOCB_CMD_PWRITE
		}
	}
	var errs error
	for begun, done := 0, 0; done < len(cbs); {
		if begun < len(cbs) {
			n, _, e := unix.Syscall(unix.SYS_IO_SUBMIT, uintptr(ctx), uintptr(len(cbs)-begun), uintptr(unsafe.Pointer(&ptrs[begun])))
			if e != 0 && e != unix.EAGAIN && e != unix.EINTR {
				return fmt.Errorf("io_submit: %w", e)
			}
			if e == 0 {
				begun += int(n)
			}
		}
		n, err := ctx.reap(transfers, begun-done)
		errs = errors.Join(errs, err)
		done += n
	}
	return errs
}

// reap waits for one of the transfers under way and takes what has ended.
func (ctx AIO) reap(transfers []Transfer, underWay int) (int, error) {
	if underWay == 0 {
		return 0, nil
	}
	events := make([]ioEvent, underWay)
	n, _, e := unix.Syscall6(unix.SYS_IO_GETEVENTS, uintptr(ctx), 1, uintptr(underWay), uintptr(unsafe.Pointer(&events[0])), 0, 0)
	if e == unix.EINTR {
		return 0, nil
	}
	if e != 0 {
		return underWay, fmt.Errorf("io_getevents: %w", e)
	}
	var errs error
	for _, ev := range events[:n] {
		switch want := int64(len(transfers[ev.data].P)); {
		case ev.res < 0:
			errs = errors.Join(errs, fmt.Errorf("transfer %d: %w", ev.data, syscall.Errno(-ev.res)))
		case ev.res != want:
			errs = errors.Join(errs, fmt.Errorf("transfer %d: %d bytes, want %d", ev.data, ev.res, want))
		}
	}
	return int(n), errs
}
