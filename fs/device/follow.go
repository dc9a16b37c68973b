package device

import (
	"bytes"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// follower decides whether the leader follows a client that is alone to the processor on which that runs. Client and leader then wake
// each other on one processor, which goes on with the one when the other waits: about 5 us. To wake a processor that sleeps takes 5 to
// 100 us, and on a virtual machine that changes within a minute, by what its neighbours do. Where it is cheap, a leader that spins on another
// processor answers sooner. So the follower tries both ways in turn, and keeps to the faster. Only the leader uses it.
//
// Measured where a wake-up took 65 us, with one thread: hot reads of 64 KiB 2.5 times as fast as with spinning alone, writes of 1 MiB 2.7
// times. Where it took 10 us, following was 0.7 times as fast.
type follower struct {
	thread uint32    // that sent the last request
	since  time.Time // when that came
	alone  int       // requests of that thread since another sent one

	near  bool             // the leader follows
	trial bool             // the present window decides whether the leader keeps this way
	spent time.Duration    // in this window so far
	costs [2]time.Duration // what a window takes, apart and near: a moving average
	wait  int              // windows between trials
	left  int              // windows before the next trial
}

const (
	window     = 64                     // requests
	aloneAfter = window / 2             // requests of one thread
	minWait    = 4                      // of follower.wait
	maxWait    = 256                    // a trial of the slower way then costs below 1 %
	longestGap = 300 * time.Microsecond // of two requests; what is longer is work of the client
	strayGap   = 25 * time.Microsecond  // from an answer to the next request: the client may have moved
)

// isAlone reports whether one thread has sent all requests lately.
func (f *follower) isAlone() bool { return f.alone >= aloneAfter }

// came notes that a request of a thread has come.
func (f *follower) came(thread uint32, now time.Time) {
	gap := now.Sub(f.since)
	f.since = now
	if thread != f.thread {
		f.thread, f.alone, f.spent = thread, 0, 0
		return
	}
	f.spent += min(gap, longestGap)
	if f.alone++; f.alone%window == 0 {
		f.judge()
		f.spent = 0
	}
}

// judge ends a window.
func (f *follower) judge() {
	ours, other := &f.costs[way(f.near)], f.costs[way(!f.near)]
	switch {
	case f.trial && f.spent < other-other/16: // else the two are about equal
		f.trial, f.wait = false, minWait
		f.left, *ours = f.wait, f.spent
	case f.trial:
		f.trial, f.near = false, !f.near
		f.wait = min(max(2*f.wait, minWait), maxWait)
		f.left, *ours = f.wait, f.spent
	default:
		*ours += (f.spent - *ours) / 4
		if f.left--; f.left < 0 {
			f.near, f.trial = !f.near, true
		}
	}
}

// way returns the place of a way in follower.costs.
func way(near bool) int {
	if near {
		return 1
	}
	return 0
}

// follow has the leader run where the client of the request in w.in runs, if it is to follow that.
func (w *worker) follow(thread uint32) {
	f := &w.d.follower
	if thread == 0 || w.d.proc < 0 { // 0: nobody waits for the answer, or the client is in another namespace
		return
	}
	f.came(thread, w.came)
	if !f.near || !f.isAlone() {
		w.unfollow()
		return
	}
	if w.home != nil && w.came.Sub(w.sent) < strayGap && f.alone%window != 0 {
		return
	}
	cpu, ok := processorOf(w.d.proc, thread)
	if !ok || w.home != nil && cpu == w.cpu {
		return
	}
	if w.home == nil {
		w.home = &unix.CPUSet{}
		if unix.SchedGetaffinity(0, w.home) != nil {
			w.home = nil
			return
		}
	}
	if w.cpu = cpu; w.home.IsSet(cpu) {
		stay(cpu)
	}
}

// unfollow lets the worker run where it could before it followed.
func (w *worker) unfollow() {
	if w.home != nil {
		_ = unix.SchedSetaffinity(0, w.home) // fails if none of the processors is left; the kernel has then seen to it
		w.home = nil
	}
}

// stay binds the calling thread to a processor. If that fails, it runs where it may.
func stay(cpu int) {
	var one unix.CPUSet
	one.Set(cpu)
	_ = unix.SchedSetaffinity(0, &one)
}

// processorOf returns the processor on which a thread has run last. proc is /proc.
func processorOf(proc int, thread uint32) (cpu int, ok bool) {
	fd, err := unix.Openat(proc, strconv.FormatUint(uint64(thread), 10)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return 0, false
	}
	const processor = 39 - 3                                             // proc_pid_stat(5); the third field comes first here
	fields := bytes.Fields(buf[bytes.LastIndexByte(buf[:n], ')')+1 : n]) // the name before may contain anything
	if len(fields) <= processor {
		return 0, false
	}
	cpu, err = strconv.Atoi(string(fields[processor]))
	return cpu, err == nil
}
