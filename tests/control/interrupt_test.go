package control

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestInterruptedEarly interrupts waiting reads at every moment of their beginning. None may
// miss the interrupt: the kernel sends it only once, and a process killed in such a read could
// not die.
func TestInterruptedEarly(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1)
	t.Cleanup(func() { signal.Stop(signals) })
	fd := open(t, d.Path(".kvfs/events"), unix.O_RDONLY)
	const rounds = 5000
	var thread, asked, back atomic.Int64
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	go func() { // Ends with the test, or with the daemon.
		runtime.LockOSThread() // Never unlocked: the thread ends, too.
		thread.Store(int64(unix.Gettid()))
		for i := range int64(rounds) {
			for asked.Load() <= i {
				runtime.Gosched()
			}
			unix.Read(fd, make([]byte, 4096)) // Nothing happens that it could tell.
			back.Store(i + 1)
		}
		<-over // One more signal may be on its way to the thread.
	}()
	for thread.Load() == 0 {
		runtime.Gosched()
	}
	spin := func(d time.Duration, until func() bool) {
		for begin := time.Now(); time.Since(begin) < d && !until(); {
		}
	}
	for i := range int64(rounds) {
		done := func() bool { return back.Load() > i }
		asked.Store(i + 1)
		spin(time.Duration(i%200)*time.Microsecond/2, done)
		for begin := time.Now(); !done(); {
			// A signal that comes before the read has begun does nothing, so there are more. Those
			// after the first that counts do nothing either.
			must(t, "tgkill", unix.Tgkill(os.Getpid(), int(thread.Load()), unix.SIGUSR1))
			spin(300*time.Microsecond, done)
			if time.Since(begin) > harness.Deadline {
				t.Fatalf("round %d: the read did not end within %v", i, harness.Deadline)
			}
		}
	}
}
