package replay

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// Life is the life of the engines of one machine: a chat larger than memory, restarts of the daemon, and a crash in
// the middle of work.
type Life struct {
	Engine    string // as registered with Main
	Dir       string // below the mount, of the engine's files
	Processes int    // engines that share the directory
	Chat      Chat
}

// Run lives it on a mount with an SSD tier that holds all of the chat. The
// engines run all the time. (B35, E20: 0 failed keys, checksums equal.)
func (l Life) Run(t *testing.T, d *harness.Daemon) {
	harness.KvfsOnly(t, "an SSD tier, and restarts")
	var engines []*Process
	for range l.Processes {
		engines = append(engines, Start(t, l.Engine, d.Path(l.Dir)))
	}
	all := func(what string, c Chat) Tally {
		t.Helper()
		sum := together(engines, c)
		sum.Want(t, what, false)
		return sum
	}
	tally := all("first time", l.Chat)
	if tally.Stored < l.Chat.Blocks() {
		t.Errorf("stored %d blocks, want at least %d", tally.Stored, l.Chat.Blocks())
	}
	Settle(t, d)

	Evict(t, d)
	l.again(t, d, "from SSD", all)
	l.wantSpilled(t, d)
	d.Restart()
	l.again(t, d, "after SIGTERM", all)
	d.Kill()
	d.Restart()
	l.again(t, d, "after SIGKILL", all)
	if engineUser() != nil { // else the engines could write below the mount point
		l.crash(t, d, engines)
	}
}

// together has all engines hold a chat at the same time.
func together(engines []*Process, c Chat) Tally {
	var sum Tally
	for _, e := range engines {
		e.Begin(c)
	}
	for _, e := range engines {
		sum.add(e.End())
	}
	return sum
}

// wantSpilled fails unless blocks went to the SSD and came back, with no failure.
func (l Life) wantSpilled(t *testing.T, d *harness.Daemon) {
	t.Helper()
	s, c := Figures(t, d)
	t.Logf("keys: %d from memory, %d from disk, %d failed; bytes by tier %v; evicted %d, lost %d",
		s.MemoryHits, s.DiskHits, s.Failed, s.BytesByTier, c.Evicted, c.Lost)
	if s.DiskHits == 0 || s.BytesByTier["disk"] == 0 || c.Evicted == 0 {
		t.Errorf("nothing came from disk: the working set of %d MiB is too small", l.Chat.Bytes()>>20)
	}
	if s.Failed > 0 || c.Poisoned > 0 || c.NoSpace > 0 {
		t.Errorf("%d failed blocks, %d poisoned files, %d without space", s.Failed, c.Poisoned, c.NoSpace)
	}
}

// again looks at all conversations once more. What kvfs did not lose is there.
func (l Life) again(t *testing.T, d *harness.Daemon, what string, run func(string, Chat) Tally) {
	t.Helper()
	tally := run(what, l.Chat.Last())
	_, c := Figures(t, d)
	if want := int64(l.Processes * len(l.Chat.Prompt(0, l.Chat.Turns-1)) * l.Chat.Conversations); int64(tally.Hits)+c.Lost < want {
		t.Errorf("%s: %d hits of %d, and %d blocks lost", what, tally.Hits, want, c.Lost)
	}
}

// crash kills the daemon in the middle of another chat and starts it again.
func (l Life) crash(t *testing.T, d *harness.Daemon, engines []*Process) {
	t.Helper()
	c := l.Chat
	c.Seed++
	c.Down = true
	stored := func() int64 {
		return d.Status().Tier(t, "memory").Blocks + int64(d.Status().Secondary(t, "disk").Stored)
	}
	before := stored()
	for _, e := range engines {
		e.Begin(c)
	}
	harness.Poll(t, "the engines are at work", func() bool { return stored() >= before+int64(c.Blocks()/8) })
	d.Kill()
	d.Restart()
	var sum Tally
	for _, e := range engines {
		sum.add(e.End())
	}
	sum.Want(t, "killed in the middle", true)
	c.Down = false
	together(engines, c.Last()).Want(t, "after that", false)
}
