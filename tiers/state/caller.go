package state

import (
	"cmp"

	"github.com/kvfs/kvfs/tiers/outcome"
)

// Caller is the thread that asks. The front fills it in before it calls the engine.
type Caller struct {
	Kernel uint32 // number of the mount; 0 if the engine has only one

	// Thread and Process are 0 if the daemon cannot see the process, because that is in
	// another pid name space. All such callers count as one process.
	Thread, Process uint32

	// Remembered is the process of Thread where Process is 0 because it does not matter. It may be out of date: the
	// thread may be another's by now.
	Remembered uint32

	// See finds Process where that is 0 and matters. Nil: it stays 0.
	See Seer

	// Cgroup is the path of the process's control group, in the hierarchy of version 2; empty unless the call may make a
	// version and Accounts.NeedCgroups says so.
	Cgroup string

	// Spare: Thread's request is the only one, so OpenLater may wait for a device.
	Spare bool

	// Waits is called before Lookup, OpenRead, OpenWrite, Create, Flush and Rename wait. Nil: no call.
	Waits Waiter
}

// Waiter is a thread that serves other requests, too. Its MayWait has another thread serve them, before this one
// waits. The goroutine of the caller calls it, perhaps more than once in a call, and holds no lock.
type Waiter interface{ MayWait() }

// Seer finds the process of a thread, 0 if it cannot be seen. The caller holds no lock.
type Seer interface{ ProcessOf(thread uint32) uint32 }

// Announce tells w, unless it is nil, that its thread is about to wait.
func Announce(w Waiter) {
	if w != nil {
		w.MayWait()
	}
}

// After returns c without the fields that matter only during the call.
func (c Caller) After() Caller {
	c.Waits, c.See, c.Cgroup, c.Spare = nil, nil, "", false
	return c
}

// Process is a process, with all its threads.
type Process struct{ Kernel, PID uint32 }

// Number returns a number that stands for the process.
func (p Process) Number() uint64 { return uint64(p.Kernel)<<32 | uint64(p.PID) }

// User returns the process whose use of a block the call is, as far as it is known.
func (c Caller) User() Process { return Process{c.Kernel, cmp.Or(c.Process, c.Remembered)} }

// Proc returns the caller's process.
func (c Caller) Proc() Process { return Process{c.Kernel, c.Process} }

// Actor names the caller's thread in verdicts.
func (c Caller) Actor() outcome.Actor { return outcome.ActorOf(c.Kernel, c.Thread) }
