package directio

import (
	"fmt"
	"io"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	maxIdle       = 3    // results in a row without progress
	maxRetries    = 1000 // EAGAIN and EBUSY in a row: 10 s, since an overloaded device takes seconds
	maxInterrupts = 1e6  // EINTR in a row: each comes at once
	maxRetryDelay = 10 * time.Millisecond
)

// String returns "read", "write" or "sync".
func (k Kind) String() string {
	switch k {
	case Read:
		return "read"
	case Write:
		return "write"
	case Sync:
		return "sync"
	}
	return "invalid"
}

// syscallName is the system call that errors of ops of kind k name.
func (k Kind) syscallName() string {
	switch k {
	case Read:
		return "pread"
	case Write:
		return "pwrite"
	}
	return "fdatasync"
}

// check returns the error of an op that breaks the rules of Op, which is EINVAL.
func (op *Op) check() error {
	invalid := os.NewSyscallError(op.Kind.syscallName(), unix.EINVAL)
	if op.Kind > Sync || op.File == nil {
		return fmt.Errorf("directio: op of kind %d, file %v: %w", op.Kind, op.File != nil, invalid)
	}
	if op.Kind == Sync {
		return nil
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(op.Mem)))
	if at%Alignment != 0 && len(op.Mem) > 0 || len(op.Mem)%Alignment != 0 || op.Off%Alignment != 0 ||
		op.Off < 0 || op.Off > math.MaxInt64-int64(len(op.Mem)) {
		return fmt.Errorf("directio: %s of %d bytes at offset %d, memory at %#x: want multiples of %d: %w",
			op.Kind, len(op.Mem), op.Off, at, Alignment, invalid)
	}
	return nil
}

// verdict is what a result means for its piece.
type verdict struct {
	done  bool
	err   error         // if done
	after time.Duration // if not done: how long to wait before the rest is tried

	continued, retried uint64
}

// judge applies a result to p: n bytes, or errno.
func (p *piece) judge(n int, errno unix.Errno) verdict {
	kind := p.req.op.Kind
	switch errno {
	case 0:
	case unix.EINTR, unix.EAGAIN, unix.EBUSY:
		return p.retry(errno)
	default:
		return verdict{done: true, err: os.NewSyscallError(kind.syscallName(), errno)}
	}
	p.retries = 0
	if kind == Sync || n == p.size-p.moved {
		p.moved = p.size
		return verdict{done: true}
	}
	return p.short(n)
}

// retry is judge for the errnos that ask for a retry.
func (p *piece) retry(errno unix.Errno) verdict {
	p.retries++
	limit := maxRetries
	if errno == unix.EINTR {
		limit = maxInterrupts
	}
	if p.retries > limit {
		return verdict{done: true, err: os.NewSyscallError(p.req.op.Kind.syscallName(), errno)}
	}
	v := verdict{retried: 1}
	if errno != unix.EINTR {
		v.after = min(time.Duration(p.retries)*time.Millisecond, maxRetryDelay)
	}
	return v
}

// short is judge for fewer bytes than asked for. A read that stops within a page has met the end of
// the file. A write that stops within a page is tried again from the page's beginning, since direct
// I/O cannot continue within it. The second try then gives the reason.
func (p *piece) short(n int) verdict {
	if p.req.op.Kind == Read && n%Alignment != 0 || n == 0 && p.req.op.Kind == Read {
		p.moved += n
		return verdict{done: true, err: io.ErrUnexpectedEOF}
	}
	pages := n &^ (Alignment - 1)
	p.moved += pages
	if pages > 0 {
		p.idle = 0
	} else if p.idle++; p.idle > maxIdle {
		return verdict{done: true, err: io.ErrShortWrite}
	}
	return verdict{continued: 1}
}
