package tiers

// Caller says who asks. The front finds it out before it calls the engine.
type Caller struct {
	Kernel uint32 // number of the mount; 0 if the engine has only one

	// Thread and Process are 0 where the daemon cannot see the process: in another pid
	// name space. All such callers count as one process.
	Thread, Process uint32

	// Told: this thread was answered ErrStale, so its kernel asks again. It does so only
	// once for each system call.
	Told bool
}

// Process is a process, with all its threads.
type Process struct{ Kernel, PID uint32 }

func (c Caller) process() Process { return Process{c.Kernel, c.Process} }

// actor is the number by which verdicts name a thread.
func (c Caller) actor() uint32 { return c.Thread | c.Kernel<<threadBits }

// threadBits is how many bits of a thread id are the kernel's own: its pid_max is at most 2^22.
const threadBits = 22
