package mount

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Linux AIO as NIXL's POSIX plugin uses it, by raw system calls: see
// include/uapi/linux/aio_abi.h.

const (
	aioPread = 0
)

// iocb is struct iocb on little-endian machines.
type iocb struct {
	data   uint64
	_      uint32
	_      uint32
	opcode uint16
	_      int16
	fd     uint32
	buf    uint64
	bytes  uint64
	offset int64
	_      uint64
	_      uint32
	_      uint32
}

type ioEvent struct {
	data uint64
	obj  uint64
	res  int64
	res2 int64
}

// submit reads or writes b from offset 0, each bytes an operation, all at once,
// and waits for them. A short operation fails the test.
func submit(t testing.TB, fd int, opcode uint16, b []byte, each int) {
	t.Helper()
	n := len(b) / each
	var ctx uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, uintptr(n), uintptr(unsafe.Pointer(&ctx)), 0); errno != 0 {
		t.Fatalf("io_setup: %v", errno)
	}
	defer unix.Syscall(unix.SYS_IO_DESTROY, ctx, 0, 0)
	cbs := make([]iocb, n)
	ptrs := make([]*iocb, n)
	var pin runtime.Pinner
	defer pin.Unpin()
	for i := range cbs {
		cbs[i] = iocb{
			data: uint64(i), opcode: opcode, fd: uint32(fd),
			buf: uint64(uintptr(unsafe.Pointer(&b[i*each]))), bytes: uint64(each), offset: int64(i * each),
		}
		pin.Pin(&cbs[i])
		ptrs[i] = &cbs[i]
	}
	for done := 0; done < n; {
		got, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, ctx, uintptr(n-done), uintptr(unsafe.Pointer(&ptrs[done])))
		if errno == unix.EINTR || errno == unix.EAGAIN {
			continue
		}
		if errno != 0 {
			t.Fatalf("io_submit: %v", errno)
		}
		done += int(got)
	}
	reap(t, ctx, n, each)
	runtime.KeepAlive(b)
}

func reap(t testing.TB, ctx uintptr, n, each int) {
	t.Helper()
	events := make([]ioEvent, n)
	for done := 0; done < n; {
		got, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, ctx, 1, uintptr(n-done),
			uintptr(unsafe.Pointer(&events[0])), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			t.Fatalf("io_getevents: %v", errno)
		}
		for _, ev := range events[:got] {
			if ev.res != int64(each) {
				t.Errorf("operation %d: got %d, want %d", ev.data, ev.res, each)
			}
		}
		done += int(got)
	}
}
