package device

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// worker is one thread of a loop, with its buffers.
type worker struct {
	d       *loop
	in, out []byte
	mem     []byte        // the mapping of both; nil: they are in the heap
	came    time.Time     // of the request in in
	sent    time.Time     // of the last answer
	home    *unix.CPUSet  // where the thread may run when it does not follow a client; nil: it follows none
	cpu     int           // of the client
	times   *latencyShard // counts how long requests take
	seen    *Access       // the request in in; nil if nobody watches
	over    atomic.Uint64 // request whose stint was too long
	late    bool          // it had that request: nobody waits for this worker any more
}

// newWorker makes a worker with buffers outside the heap: a collection waits until the heap has doubled, and nearly all of
// the buffers is never touched. The caller must call free.
func (d *loop) newWorker() *worker {
	w := &worker{d: d, times: d.latencies.shard()}
	mem, err := unix.Mmap(-1, 0, 2*d.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		w.mem = mem
	} else {
		mem = make([]byte, 2*d.size)
	}
	w.in, w.out = mem[:d.size:d.size], mem[d.size:]
	return w
}

// free returns the buffers.
func (w *worker) free() {
	if w.mem != nil {
		unix.Munmap(w.mem) // cannot fail: it is a mapping of newWorker
	}
}

// Opcodes of include/uapi/linux/fuse.h that workers tell apart.
const (
	opcodeLookup      = 1
	opcodeForget      = 2
	opcodeGetattr     = 3
	opcodeMknod       = 8
	opcodeMkdir       = 9
	opcodeUnlink      = 10
	opcodeRmdir       = 11
	opcodeRename      = 12
	opcodeLink        = 13
	opcodeOpen        = 14
	opcodeStatfs      = 17
	opcodeRelease     = 18
	opcodeGetxattr    = 22
	opcodeFlush       = 25
	opcodeInit        = 26
	opcodeOpendir     = 27
	opcodeReleasedir  = 29
	opcodeAccess      = 34
	opcodeCreate      = 35
	opcodeInterrupt   = 36
	opcodeBatchForget = 42
	opcodeRename2     = 45
)

// capability is the attribute that the kernel asks for before the first write to each new file.
const capability = "security.capability\x00"

// asksCapability reports whether a request of n bytes asks for capability.
func (w *worker) asksCapability(n int) bool {
	name := int(unsafe.Sizeof(fuse.GetXAttrIn{}))
	return n == name+len(capability) && string(w.in[name:n]) == capability
}

// short reports whether the leader answers a request itself: the request takes microseconds, or
// calls mayBlock before it waits.
func short(h *fuse.InHeader) bool {
	switch h.Opcode {
	case opcodeLookup, opcodeForget, opcodeGetattr, opcodeUnlink, opcodeRename, opcodeRename2, opcodeStatfs,
		opcodeRelease, opcodeFlush, opcodeOpendir, opcodeReleasedir, opcodeAccess, opcodeCreate,
		opcodeInterrupt, opcodeBatchForget:
		return true
	case opcodeOpen:
		in := (*fuse.OpenIn)(unsafe.Pointer(h))
		return in.Flags&(unix.O_ACCMODE|unix.O_TRUNC) == unix.O_RDONLY && h.NodeId < ServiceNodes
	}
	return false
}

// lead takes and answers requests until it has handed the lead over. It returns false when the
// mount is gone.
func (w *worker) lead() bool {
	defer w.unfollow()
	w.sent = time.Now()
	for {
		n, err := w.take()
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN, unix.ENOENT: // ENOENT: the request was interrupted before we read it
			continue
		case unix.ENODEV:
			return false
		default:
			w.d.log.Error("read /dev/fuse", zap.Error(err))
			return false
		}
		if n == 0 {
			return false // halted
		}
		fd := w.d.poll
		h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
		w.d.spin.last = opOf(h.Opcode)
		w.follow(h.Pid)
		if !w.admit(fd, n) {
			continue
		}
		if !short(h) && !(h.Opcode == opcodeGetxattr && w.asksCapability(n)) {
			w.d.handOver()
			w.answer(fd, n)
			return true
		}
		w.d.unique.Store(h.Unique)
		w.answer(fd, n)
		if !w.d.unique.CompareAndSwap(h.Unique, 0) {
			w.late = w.over.Load() == h.Unique
			return true // the request waited, and another worker leads
		}
	}
}

// take reads one request from d.poll, to which the answer goes as well. It spins for as long as
// that is promising, then sleeps. It returns 0 when the leader must end.
func (w *worker) take() (n int, err error) {
	if w.d.closing.Load() {
		return 0, nil
	}
	// While blocks are being promoted, the processors have better work.
	if budget := w.budget(); budget > 0 && w.d.opening.Load() == 0 {
		for {
			r, errno := rawRead(w.d.poll, w.in)
			now := time.Now()
			if errno == 0 {
				w.came = now
				w.d.spin.took(now.Sub(w.sent))
				return r, nil
			}
			if errno != unix.EAGAIN {
				return 0, errno
			}
			// If the client has only this processor, let it go on.
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			if now.Sub(w.sent) > budget {
				break
			}
		}
	}
	n, err = w.d.await(w.in)
	if err == nil {
		w.came = time.Now()
		w.d.spin.took(w.came.Sub(w.sent))
	}
	return n, err
}

// budget returns how long to spin now.
func (w *worker) budget() time.Duration {
	switch {
	case w.home != nil: // the client needs the processor to go on
		return 0
	case w.d.follower.isAlone():
		return w.d.spin.budget(maxSpinLone)
	}
	return w.d.spin.budget(maxSpin)
}

// answer handles the request of n bytes in w.in and writes the reply to fd.
func (w *worker) answer(fd, n int) {
	if w.d.watch.Ops.Load() != 0 {
		w.seen = w.watched(n)
	}
	size, ok := w.hot(fd, n)
	later := ok && size == 0
	if !ok {
		var st fuse.Status
		size, st = w.d.ps.HandleRequest([][]byte{w.in[:n]}, [][]byte{w.out})
		if st != fuse.OK {
			size = w.fail(st)
		}
	}
	if size > 0 && !w.leaves() {
		w.reply(fd, size)
	}
	w.sent = time.Now()
	if !later { // else Reply.Send counts it
		w.times[opOf((*fuse.InHeader)(unsafe.Pointer(&w.in[0])).Opcode)].Observe(w.sent.Sub(w.came))
	}
	if w.seen != nil {
		if !later {
			w.show(size)
		}
		w.seen = nil
	}
	// If another OPEN waits, the next request is likely to be there. A thread that the yield starts would run where the follower is bound.
	if later && w.d.opening.Load() == 1 && w.home == nil {
		yield()
	}
}

// yield lets a goroutine that the request has just started run on this thread until it waits. Else another thread
// would have to wake up for it.
func yield() {
	runtime.UnlockOSThread()
	runtime.Gosched()
	runtime.LockOSThread()
}

// leaves reports whether the request is left to the next owner: it waited for something and was
// cancelled because this owner leaves, or it opens a directory (listings).
func (w *worker) leaves() bool {
	if (*fuse.OutHeader)(unsafe.Pointer(&w.out[0])).Status != -int32(unix.EINTR) {
		return false
	}
	return w.d.leaving.Load() || (*fuse.InHeader)(unsafe.Pointer(&w.in[0])).Opcode == opcodeOpendir
}

// reply writes the first size bytes of w.out. The kernel takes a reply without waiting, so the
// scheduler need not know. ENOENT means that the client no longer waits.
func (w *worker) reply(fd, size int) {
	for {
		errno := rawWrite(fd, w.out[:size])
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 && errno != unix.ENOENT {
			w.d.log.Error("write /dev/fuse", zap.Error(errno))
		}
		return
	}
}

// fail makes a reply of an error of the protocol layer.
func (w *worker) fail(st fuse.Status) int {
	h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
	return w.head(h.Unique, st, 0)
}

const headBytes = int(unsafe.Sizeof(fuse.OutHeader{}))

// head writes the header of a reply with a body of that size. It returns the size of both.
func (w *worker) head(unique uint64, st fuse.Status, body uintptr) int {
	if st != fuse.OK {
		body = 0
	}
	size := headBytes + int(body)
	*(*fuse.OutHeader)(unsafe.Pointer(&w.out[0])) = fuse.OutHeader{Length: uint32(size), Status: -int32(st), Unique: unique}
	return size
}

// Reply is an OPEN that is answered once its block is in memory. No thread waits for that.
type Reply struct {
	d      *loop
	fd     int
	unique uint64
	came   time.Time // of the request
	seen   *Access   // nil if nobody watches
	w      *worker   // that has the request; for Keep
}

// Send answers with st and out.
func (r Reply) Send(st fuse.Status, out *fuse.OpenOut) {
	var buf [headBytes + int(unsafe.Sizeof(*out))]byte
	r.d.opening.Add(-1)
	defer func() {
		took := time.Since(r.came)
		r.d.latencies.Observe(OpOpen, took)
		if r.seen != nil {
			r.seen.Status, r.seen.Took = st, took
			r.d.watch.Answered(r.seen)
		}
	}()
	size := len(buf)
	if st != fuse.OK {
		size = headBytes
	}
	*(*fuse.OutHeader)(unsafe.Pointer(&buf[0])) = fuse.OutHeader{Length: uint32(size), Status: -int32(st), Unique: r.unique}
	*(*fuse.OpenOut)(unsafe.Pointer(&buf[headBytes])) = *out
	r.d.open.RLock()
	defer r.d.open.RUnlock()
	if r.d.open.closed {
		return
	}
	for {
		_, err := unix.Write(r.fd, buf[:size])
		if err == unix.EINTR {
			continue
		}
		if err != nil && err != unix.ENOENT && err != unix.ENODEV {
			r.d.log.Error("write /dev/fuse", zap.Error(err))
		}
		return
	}
}

// interruptsOpen reports whether an INTERRUPT of n bytes is of an OPEN. go-fuse does not know of that: it would have the kernel ask
// again at once, until the block has come.
func (w *worker) interruptsOpen(n int) bool {
	in := (*fuse.InterruptIn)(unsafe.Pointer(&w.in[0]))
	return n == int(unsafe.Sizeof(*in)) && w.d.opened(in.Unique).Load() == in.Unique
}

// hot answers the requests of a hot read without the protocol layer and without allocating. It
// returns size 0 if the answer comes later. fd is the descriptor that read the request.
func (w *worker) hot(fd, n int) (size int, ok bool) {
	h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
	body := unsafe.Pointer(&w.out[headBytes])
	switch h.Opcode {
	case opcodeOpen:
		if n < int(unsafe.Sizeof(fuse.OpenIn{})) {
			return 0, false
		}
		w.d.opened(h.Unique).Store(h.Unique)
		out := (*fuse.OpenOut)(body)
		*out = fuse.OpenOut{}
		in := (*fuse.OpenIn)(unsafe.Pointer(h))
		if !short(h) || in.Flags&unix.O_NONBLOCK != 0 {
			return w.head(h.Unique, w.d.files.Open(nil, in, out), unsafe.Sizeof(*out)), true
		}
		w.d.opening.Add(1)
		st, later := w.d.files.OpenLater(in, out, Reply{w.d, fd, h.Unique, w.came, w.seen, w})
		if later {
			return 0, true
		}
		w.d.opening.Add(-1)
		return w.head(h.Unique, st, unsafe.Sizeof(*out)), true
	case opcodeInterrupt:
		return 0, w.interruptsOpen(n)
	case opcodeRelease:
		if n < int(unsafe.Sizeof(fuse.ReleaseIn{})) {
			return 0, false
		}
		w.d.files.Release(nil, (*fuse.ReleaseIn)(unsafe.Pointer(h)))
		return w.head(h.Unique, fuse.OK, 0), true
	case opcodeLookup:
		// The name stays in the buffer until the look-up returns.
		name := w.in[unsafe.Sizeof(fuse.InHeader{}):max(n-1, int(unsafe.Sizeof(fuse.InHeader{})))]
		out := (*fuse.EntryOut)(body)
		*out = fuse.EntryOut{}
		st := w.d.files.Lookup(nil, h, unsafe.String(unsafe.SliceData(name), len(name)), out)
		return w.head(h.Unique, st, unsafe.Sizeof(*out)), true
	case opcodeGetxattr:
		if !w.asksCapability(n) {
			return 0, false
		}
		_, st := w.d.files.GetXAttr(nil, h, capability[:len(capability)-1], nil)
		return w.head(h.Unique, st, 0), true
	case opcodeGetattr:
		if n < int(unsafe.Sizeof(fuse.GetAttrIn{})) {
			return 0, false
		}
		out := (*fuse.AttrOut)(body)
		*out = fuse.AttrOut{}
		st := w.d.files.GetAttr(nil, (*fuse.GetAttrIn)(unsafe.Pointer(h)), out)
		return w.head(h.Unique, st, unsafe.Sizeof(*out)), true
	}
	return 0, false
}
