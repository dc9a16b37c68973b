package cluster

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// stallRound is how long each round looks for stalls: until gossip has noticed, and beyond.
const stallRound = 5 * time.Second

// stallLimit is far above the time of an operation, and below the time that gossip needs to notice.
const stallLimit = 3 * time.Second

// TestStalls freezes, cuts off and kills a node of three, and notes how long the slowest
// operation on another one takes from then on: opens of blocks that the lost node alone has, by
// eight readers, listings, and creates, renames and removals in the directory that is being
// listed. None waits until gossip has noticed, or for the time that a peer has at most.
func TestStalls(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{PeerTimeout: 30 * time.Second})
	for _, fault := range []struct {
		name         string
		break_, mend func(lost *harness.Node)
	}{
		{"frozen", func(n *harness.Node) { harness.Freeze(t, n.Pid) }, func(n *harness.Node) { unix.Kill(n.Pid, unix.SIGCONT) }},
		{"cut off", func(n *harness.Node) { w.Net.Isolate(n.Index) }, func(*harness.Node) { w.Net.Heal() }},
		{"cut off one way", func(n *harness.Node) { w.Net.PartitionOneWay(n.Index, 0) }, func(*harness.Node) { w.Net.Heal() }},
		{"killed", func(n *harness.Node) { n.Kill() }, func(n *harness.Node) { n.Restart() }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			a, lost := w.Nodes[0], w.Nodes[1]
			w.fill(lost, "stall-"+fault.name, 64, 1*mib)
			w.WaitQuiet()
			for i := range 8 { // they knew each other
				w.mustRead(a, block("stall-%s-%03d", fault.name, i))
			}
			t.Cleanup(func() { fault.mend(lost); w.WaitJoined() })
			fault.break_(lost)
			for what, worst := range w.stalls(a, "stall-"+fault.name) {
				t.Logf("%s: %s: %v", fault.name, what, worst.Round(time.Millisecond))
				if worst > stallLimit {
					t.Errorf("%s took %v", what, worst)
				}
			}
		})
	}
}

// stalls returns how long the slowest operation of each kind takes on a node in some seconds.
func (w *world) stalls(n *harness.Node, blocks string) map[string]time.Duration {
	worst := map[string]time.Duration{}
	var mu sync.Mutex
	var work sync.WaitGroup
	until := time.Now().Add(stallRound)
	loop := func(what string, op func(i int)) {
		work.Go(func() {
			for i := 0; time.Now().Before(until); i++ {
				begin := time.Now()
				op(i)
				took := time.Since(begin)
				mu.Lock()
				worst[what] = max(worst[what], took)
				mu.Unlock()
			}
		})
	}
	for r := range 8 {
		loop("open", func(i int) { _, _ = os.ReadFile(n.Path(block("%s-%03d", blocks, (8*i+r)%64))) }) // a miss is one
	}
	loop("ls", func(int) { _, _ = os.ReadDir(n.Path(group)) })
	loop("create, rename, rm", func(i int) {
		name := n.Path(block("own-%d", i%10))
		err := os.WriteFile(name+".tmp", make([]byte, 4*kib), 0o644)
		if err == nil {
			err = os.Rename(name+".tmp", name)
		}
		if err == nil {
			err = os.Remove(name)
		}
		if err != nil {
			w.t.Error(fmt.Errorf("in the directory that is listed: %w", err))
		}
	})
	loop("mkdir, rmdir", func(i int) {
		dir := n.Path(block("dir-%d", i%10))
		if err := os.Mkdir(dir, 0o755); err == nil {
			_ = os.Remove(dir)
		}
	})
	work.Wait()
	return worst
}
