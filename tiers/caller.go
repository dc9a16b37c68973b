package tiers

import "github.com/kvfs/kvfs/tiers/fate"

// Caller says who asks. The front finds it out before it calls the engine.
type Caller struct {
	Kernel uint32 // number of the mount; 0 if the engine has only one

	// Thread and Process are 0 where the daemon cannot see the process: in another pid
	// name space. All such callers count as one process.
	Thread, Process uint32

	// Told: this thread was answered ErrStale, so its kernel asks again. It does so only
	// once for each system call.
	Told bool

	// Waits is told before OpenRead, OpenWrite, Create, Flush and Rename wait. Nil: nobody wants to know.
	Waits Waiter
}

// Waiter is a thread that serves others, too: before it waits it sees to it that another one does. MayWait may
// be called more than once in a call, by the goroutine of the caller, without a lock.
type Waiter interface{ MayWait() }

// announce tells w, if there is anybody, that its thread is about to wait.
func announce(w Waiter) {
	if w != nil {
		w.MayWait()
	}
}

// after is what is remembered of c after the call.
func (c Caller) after() Caller {
	c.Waits = nil
	return c
}

// Process is a process, with all its threads.
type Process struct{ Kernel, PID uint32 }

func (c Caller) process() Process { return Process{c.Kernel, c.Process} }

// actor names the caller's thread in verdicts.
func (c Caller) actor() fate.Actor { return fate.ActorOf(c.Kernel, c.Thread) }
