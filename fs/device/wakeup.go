package device

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WakeUp is what it costs to wake a sleeping thread: half the median time of a question to it and its answer.
type WakeUp struct {
	Apart    time.Duration // on another processor; 0 if there is none
	Together time.Duration // on the processor of the thread that wakes it
}

// Dear reports whether a wake-up takes longer than all else of a request.
func (w WakeUp) Dear() bool { return w.Apart > 30*time.Microsecond }

// String says both figures.
func (w WakeUp) String() string {
	if w.Apart == 0 {
		return fmt.Sprintf("to wake a thread takes %v; there is one processor", w.Together.Round(time.Microsecond))
	}
	return fmt.Sprintf("to wake a thread takes %v on another processor, %v on the same one", w.Apart.Round(time.Microsecond), w.Together.Round(time.Microsecond))
}

// questions is how many a figure of WakeUp takes. The dearest wake-ups seen take 0.3 ms, so both take 20 ms at most.
const questions = 32

// MeasureWakeUp asks a thread that sleeps, on each kind of processor in turn. Figures are 0 where the kernel refuses it.
func MeasureWakeUp() (w WakeUp) {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return w
	}
	w.Together = askOn(func(asker int) int { return asker })
	if all.Count() > 1 {
		w.Apart = askOn(func(asker int) int { return apart(&all, asker) })
	}
	return w
}

// apart returns another processor of a set. It shares no core with that one where neighbours in the list, or both halves of
// it, are the threads of one core.
func apart(set *unix.CPUSet, from int) int {
	var all []int
	for cpu := range int(unsafe.Sizeof(*set)) * 8 {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all[(slices.Index(all, from)+max(1, len(all)/3))%len(all)]
}

// askOn measures with the thread that sleeps on the processor that on returns for that of the thread that asks. Both threads
// end with it.
func askOn(on func(asker int) int) time.Duration {
	ask, err1 := unix.Eventfd(0, unix.EFD_CLOEXEC)
	reply, err2 := unix.Eventfd(0, unix.EFD_CLOEXEC)
	defer func() {
		for _, fd := range []int{ask, reply} {
			unix.Close(fd)
		}
	}()
	if errors.Join(err1, err2) != nil {
		return 0
	}
	cpu, times := make(chan int), make(chan []time.Duration)
	go func() { // ends after the last question
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		stay(<-cpu)
		for range questions {
			transfer(unix.Read, ask)
			transfer(unix.Write, reply)
		}
	}()
	go func() { // ends after the last answer
		runtime.LockOSThread() // as above
		here := processor()
		if on(here) != here {
			stay(here)
		}
		cpu <- on(here)
		var took []time.Duration
		for range questions {
			from := time.Now()
			transfer(unix.Write, ask)
			transfer(unix.Read, reply)
			took = append(took, time.Since(from))
		}
		times <- took
	}()
	took := <-times
	slices.Sort(took)
	return took[len(took)/2] / 2
}

// processor returns the one that runs the calling thread.
func processor() int {
	var cpu uint32
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0) // fails with a bad pointer only
	return int(cpu)
}

// transfer reads or writes an eventfd.
func transfer(do func(int, []byte) (int, error), fd int) {
	for buf := [8]byte{0: 1}; ; {
		if _, err := do(fd, buf[:]); err != unix.EINTR {
			return
		}
	}
}
