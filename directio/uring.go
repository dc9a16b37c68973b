//go:build giouring

package directio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// wakeData marks the completion of the read of the eventfd. The data of pieces are never 0: see
// slotData.
const wakeData = 0

// uring is the engine that gives pieces to one io_uring. A single goroutine, locked to its thread,
// creates the ring, submits and reaps. So the ring needs no locks in this process or in the kernel
// (SINGLE_ISSUER, DEFER_TASKRUN). One system call submits everything that is queued. The number in
// flight is known exactly.
//
// The owner sleeps in io_uring_enter. The ring is reading an eventfd. A goroutine that queues a
// piece writes to the eventfd if asleep is set, and clears asleep. The owner sets asleep before it
// looks at the queue for the last time. So either the owner sees the piece, or the goroutine sees
// asleep.
type uring struct {
	s       *scheduler
	ring    *giouring.Ring
	entries int
	event   *os.File // an os.File, since wake may use it after teardown
	count   []byte   // page that the ring reads event into

	asleep atomic.Bool

	// Owner only.
	slots   []slot
	free    []uint32 // indexes of unused slots
	results []result
	armed   bool // a read of event is in flight
	broken  bool // enter fails; logged
}

// slot holds a piece in flight, and so its memory, until the completion with the slot's index and
// generation comes.
type slot struct {
	piece      *piece
	generation uint32
}

// result is a completion.
type result struct {
	userData uint64
	res      int32
}

// slotData returns the user data of a slot.
func slotData(index, generation uint32) uint64 { return uint64(generation)<<32 | uint64(index+1) }

// openUring starts an engine with a ring of its own, after the ring has proved that it works.
func openUring(o Options) (Engine, error) {
	u := &uring{entries: o.Entries}
	u.s = newScheduler(EngineUring, o.Entries, o)
	u.s.wake = u.wake
	u.s.stop = u.signal
	ready := make(chan error)
	go u.run(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return u.s, nil
}

// run is the owner. It ends when the scheduler is drained. If it cannot get the ring, it sends the
// error on ready and ends at once.
func (u *uring) run(ready chan<- error) {
	// Never unlocked: the thread of a ring ends with the ring.
	runtime.LockOSThread()
	err := u.setup()
	if err != nil {
		u.teardown()
	}
	ready <- err
	if err != nil {
		return
	}
	for u.step() {
	}
	u.teardown()
	close(u.s.gone)
}

// step submits pieces, waits for a completion and hands out the results. It returns false when all
// is done.
func (u *uring) step() bool {
	u.asleep.Store(true)
	closed, drained := u.submitAll()
	if !u.armed && (!closed || !drained && len(u.free) == u.entries) { // at the end only a Run may be under way
		u.arm()
	}
	if drained && !u.armed {
		return false
	}
	_, err := u.ring.SubmitAndWait(1)
	u.asleep.Store(false)
	u.reap()
	u.entered(err)
	return true
}

// submitAll queues for submission all pieces that may go now, and returns the state of the
// scheduler.
func (u *uring) submitAll() (closed, drained bool) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	for p := u.s.takeLocked(); p != nil; p = u.s.takeLocked() {
		u.prepare(p)
	}
	return u.s.mu.closed, u.s.drainedLocked()
}

// entered handles the result of io_uring_enter. What was not submitted goes with the next call.
func (u *uring) entered(err error) {
	switch {
	case err == nil:
		u.broken = false
	case errors.Is(err, unix.EINTR): // any signal, also of the Go runtime
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY):
		time.Sleep(time.Millisecond)
	default:
		// The pieces in flight stay so: their state is unknown.
		if !u.broken {
			u.s.log.Error("io_uring_enter fails, trying on", zap.Error(err))
		}
		u.broken = true
		time.Sleep(maxRetryDelay)
	}
}

// prepare queues p for submission.
func (u *uring) prepare(p *piece) {
	op := p.req.op
	sqe := u.entry()
	switch op.Kind {
	case Read:
		sqe.PrepareRead(op.File.fd, address(p.rest()), uint32(p.size-p.moved), uint64(p.offset()))
	case Write:
		sqe.PrepareWrite(op.File.fd, address(p.rest()), uint32(p.size-p.moved), uint64(p.offset()))
	case Sync:
		sqe.PrepareFsync(op.File.fd, giouring.FsyncDatasync)
	}
	index := u.free[len(u.free)-1]
	u.free = u.free[:len(u.free)-1]
	u.slots[index].piece = p
	sqe.UserData = slotData(index, u.slots[index].generation)
}

// entry returns an empty submission entry. The library does not clear entries and does not set all
// of their fields, so old flags would stay. One entry is always free: the ring is larger than what
// may be in flight.
func (u *uring) entry() *giouring.SubmissionQueueEntry {
	sqe := u.ring.GetSQE()
	*sqe = giouring.SubmissionQueueEntry{}
	return sqe
}

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// arm queues a read of the eventfd.
func (u *uring) arm() {
	sqe := u.entry()
	sqe.PrepareRead(int(u.event.Fd()), address(u.count), 8, 0)
	sqe.UserData = wakeData
	u.armed = true
}

// reap takes all completions off the ring, then hands them out.
func (u *uring) reap() {
	u.results = u.results[:0]
	u.ring.ForEachCQE(func(cqe *giouring.CompletionQueueEvent) {
		u.results = append(u.results, result{cqe.UserData, cqe.Res})
	})
	u.ring.CQAdvance(uint32(len(u.results)))
	for _, r := range u.results {
		if r.userData == wakeData {
			u.armed = false
			continue
		}
		index := uint32(r.userData) - 1
		if uint64(index) >= uint64(len(u.slots)) || u.slots[index].piece == nil ||
			r.userData != slotData(index, u.slots[index].generation) {
			u.s.log.Error("io_uring completed what was not submitted", zap.Uint64("user_data", r.userData), zap.Int32("res", r.res))
			continue
		}
		p := u.slots[index].piece
		u.slots[index] = slot{generation: u.slots[index].generation + 1}
		u.free = append(u.free, index)
		if r.res < 0 {
			u.s.finish(p, 0, unix.Errno(-r.res))
		} else {
			u.s.finish(p, int(r.res), 0)
		}
		u.feed()
	}
}

// feed submits what has been queued since. Else the device would idle while the ends of Starts are told, which verify and copy.
func (u *uring) feed() {
	if u.submitAll(); u.ring.SQReady() > 0 {
		_, _ = u.ring.Submit() // what it leaves goes with the next call
	}
}

// wake makes the owner look at the queue, unless it will do so anyway.
func (u *uring) wake() {
	if u.asleep.CompareAndSwap(true, false) {
		u.signal()
	}
}

// signal ends the owner's sleep.
func (u *uring) signal() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = u.event.Write(one[:]) // fails only after teardown, when nothing sleeps
}

// setup creates the ring and shows that it works.
func (u *uring) setup() error {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	u.event = os.NewFile(uintptr(event), "eventfd")
	u.count, err = unix.Mmap(-1, 0, Alignment, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	// One more than the scheduler gives out: the read of the eventfd.
	if u.ring, err = newRing(uint32(u.entries) + 1); err != nil {
		return err
	}
	if err := roundTrip(u.ring); err != nil {
		return err
	}
	probe, err := u.ring.GetProbeRing()
	if err != nil {
		return explain("io_uring_register", err)
	}
	for _, op := range []uint8{giouring.OpRead, giouring.OpWrite, giouring.OpFsync} {
		if !probe.IsSupported(op) {
			return fmt.Errorf("kernel lacks io_uring operation %d (Linux 5.6 has it): %w", op, unix.EOPNOTSUPP)
		}
	}
	u.slots = make([]slot, u.entries)
	for i := range u.slots {
		u.free = append(u.free, uint32(i))
	}
	slices.Reverse(u.free)
	return nil
}

// teardown frees what setup made. Nothing is in flight.
func (u *uring) teardown() {
	if u.ring != nil {
		u.ring.QueueExit()
	}
	if u.count != nil {
		_ = unix.Munmap(u.count) // fails only for memory that is not mapped
	}
	if u.event != nil {
		u.event.Close()
	}
}

// newRing returns a ring with the best flags that the kernel has: Linux 6.1, 5.19, 5.1.
func newRing(entries uint32) (*giouring.Ring, error) {
	var err error
	for _, flags := range []uint32{giouring.SetupSingleIssuer | giouring.SetupDeferTaskrun, giouring.SetupCoopTaskrun, 0} {
		ring := giouring.NewRing()
		if err = ring.QueueInit(entries, flags); err == nil {
			return ring, nil
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return nil, explain("io_uring_setup", err)
}

// roundTrip sends a NOP through ring. A filter of system calls can allow setup and forbid enter.
func roundTrip(ring *giouring.Ring) error {
	const data = 0x6b766673
	sqe := ring.GetSQE()
	*sqe = giouring.SubmissionQueueEntry{}
	sqe.PrepareNop()
	sqe.UserData = data
	for ring.CQReady() == 0 {
		if _, err := ring.SubmitAndWait(1); err != nil && !errors.Is(err, unix.EINTR) {
			return explain("io_uring_enter", err)
		}
	}
	var got result
	ring.ForEachCQE(func(cqe *giouring.CompletionQueueEvent) { got = result{cqe.UserData, cqe.Res} })
	ring.CQAdvance(ring.CQReady())
	if got != (result{data, 0}) {
		return fmt.Errorf("io_uring NOP came back as %#x with result %d", got.userData, got.res)
	}
	return nil
}
