package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// slow bounds what a node sends, so that a fetch can be caught in the middle.
func (w *world) slow(node int, rate string) {
	w.t.Helper()
	w.Net.Run(node, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
}

// fast undoes slow.
func (w *world) fast(node int) {
	w.t.Helper()
	w.Net.Run(node, "tc", "qdisc", "del", "dev", "eth0", "root")
}

// received returns how many bytes a node has received.
func (w *world) received(node int) uint64 {
	w.t.Helper()
	traffic, err := w.Net.Traffic(node)
	if err != nil {
		w.t.Fatal(err)
	}
	return traffic.ReceivedBytes
}

// outcome is what a read in the background found.
type outcome struct {
	name    string
	version uint64
	err     error
}

// readAll reads names on a node in parallel.
func (w *world) readAll(n *harness.Node, names ...string) <-chan outcome {
	out := make(chan outcome, len(names))
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { // Ends with its read.
			version, err := w.read(n, name)
			out <- outcome{name, version, err}
		})
	}
	go func() { all.Wait(); close(out) }() // Ends with the reads.
	return out
}

// faults are what can happen to the holder of a block.
var faults = []struct {
	name string
	do   func(w *world, n *harness.Node)
	undo func(w *world, n *harness.Node)
}{
	{"kill", func(_ *world, n *harness.Node) { n.Kill() }, func(_ *world, n *harness.Node) { n.Restart() }},
	{"stop", func(w *world, n *harness.Node) { harness.Freeze(w.t, n.Pid) },
		func(_ *world, n *harness.Node) { unix.Kill(n.Pid, unix.SIGCONT) }},
	{"partition", func(w *world, n *harness.Node) { w.Net.Isolate(n.Index) },
		func(w *world, _ *harness.Node) { w.Net.Heal() }},
	{"it cannot hear", func(w *world, n *harness.Node) { w.Net.PartitionOneWay(2, n.Index) },
		func(w *world, _ *harness.Node) { w.Net.Heal() }},
	{"it cannot be heard", func(w *world, n *harness.Node) { w.Net.PartitionOneWay(n.Index, 2) },
		func(w *world, _ *harness.Node) { w.Net.Heal() }},
	{"link down", func(w *world, n *harness.Node) { w.Net.LinkDown(n.Index) },
		func(w *world, n *harness.Node) { w.Net.LinkUp(n.Index) }},
}

// TestHolderLost lets each of the faults happen to the holder in the middle of a fetch. Readers on the third node get
// the bytes of the other holder if there is one, else no such file, in time. When the holder is back, all is well.
func TestHolderLost(t *testing.T) {
	for _, copied := range []bool{true, false} {
		w := newWorld(t, harness.ClusterOptions{
			Options: harness.Options{MemorySize: "192MiB"}, PeerTimeout: loseTimeout,
		})
		for i, f := range faults {
			t.Run(fmt.Sprintf("%s, another holder %v", f.name, copied), func(t *testing.T) {
				w.t = t
				name := block("lost-%v-%d", copied, i)
				w.lose(name, copied, f.do, f.undo)
			})
		}
		w.t = t
		w.agree()
	}
}

// loseTimeout is the deadline of the peers of lose: half of it is for the other holder.
const loseTimeout = 4 * time.Second

func (w *world) lose(name string, copied bool, do, undo func(*world, *harness.Node)) {
	t := w.t
	t.Helper()
	a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	const size = 12 * mib
	version := w.mustWrite(a, name, size)
	if copied {
		w.wantVersion(b, name, version)
		w.WaitQuiet() // c knows of that copy, too
	}
	harness.Poll(t, "the block is known", func() bool { return w.exists(c, name) })
	harness.Poll(t, "the holder is asked again", func() bool { return c.Member(a.Name).Breaker == "closed" })
	w.slow(0, "50mbit") // 2 s for the block: longer than it takes to catch it, less than the deadline.
	begin := w.received(2)
	reads := w.readAll(c, name, name, name)
	if !copied { // With a copy it may all come from there.
		harness.Poll(t, "the fetch is under way", func() bool {
			if len(reads) > 0 {
				t.Fatalf("a read ended before the fetch began: %+v; %+v", <-reads, c.Member(a.Name))
			}
			return w.received(2)-begin > mib
		})
	}
	do(w, a)
	for got := range reads {
		if got.err != nil {
			t.Error(got.err)
		} else if copied && got.version != version {
			t.Errorf("version %d, want %d, which %s has, too", got.version, version, b.Name)
		}
	}
	other, err := w.read(c, block("first-of-%s", b.Name)) // Others go on.
	if err != nil || other == 0 {
		t.Errorf("a block of %s meanwhile: version %d, %v", b.Name, other, err)
	}
	w.fast(0)
	undo(w, a)
	w.WaitJoined()
	w.wantEverywhere(name, version)
	w.remove(c, name)
	w.wantEverywhere(name, 0)
	again := name + "-again" // What it alone has can be had again.
	w.wantVersion(c, again, w.mustWrite(a, again, mib))
}

// TestEvictedMeanwhile shows that a holder that drops its copy after it was found is a
// miss or another holder, never an error or other bytes. One node writes four times what fits on it, another reads all of it.
func TestEvictedMeanwhile(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Flags: func(node int) []string {
		if node == 0 {
			return []string{"--memory-size", "64MiB"} // for a quarter of the blocks
		}
		return []string{"--memory-size", "320MiB"} // for all: blocks that are looked up may not be evicted
	}})
	a, c := w.Nodes[0], w.Nodes[2]
	const size = mib
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { // Ends after its rounds: four times what fits.
		defer close(done)
		for i := range 256 {
			if _, err := w.write(a, block("evicted-%03d", i), size); err != nil {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	for i := 0; ; i = (i + 1) % 256 {
		if _, err := w.read(c, block("evicted-%03d", i)); err != nil {
			t.Error(err)
		}
		select {
		case <-done:
			writer.Wait()
			w.agree()
			return
		default:
		}
	}
}
