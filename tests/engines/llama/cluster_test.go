package llama

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// pair is two nodes, in network name spaces, with the directory of the slots on both.
func pair(t *testing.T, opts harness.ClusterOptions) (c *harness.Cluster, a, b *harness.Node) {
	t.Helper()
	opts.Nodes = 2
	if opts.PeerTimeout == 0 {
		opts.PeerTimeout, opts.PeerSilence = 20*time.Second, 5*time.Second // A node that is slow for a while is no miss.
	}
	c = harness.NewCluster(t, opts)
	a, b = c.Nodes[0], c.Nodes[1]
	slots(t, a.Daemon)
	slots(t, b.Daemon)
	return c, a, b
}

// TestNodes shows that a state which was saved on one node is restored on another,
// which fetches it: from the memory of the first, or from its SSD (C1).
func TestNodes(t *testing.T) {
	e := prepare(t).WithPrompt(91, 400)
	for _, disk := range []string{"", "64MiB"} {
		t.Run("disk="+disk, func(t *testing.T) {
			c, a, b := pair(t, harness.ClusterOptions{Options: harness.Options{Disk: disk}})
			saved := e.Save(t, a.Path("llama.cpp"), slot)
			if disk != "" {
				stored(t, a.Daemon, 1)
				evict(t, "--tier", "memory", a.Path("llama.cpp", slot))
			}
			c.WaitQuiet()
			if diff := Diff(e.Restore(t, b.Path("llama.cpp"), slot), saved); diff != "" {
				t.Errorf("restored process differs: %s", diff)
			}
			if m := b.Member(a.Name); m.FetchedSize != uint64(saved.Bytes) {
				t.Errorf("%d bytes were fetched, want %d", m.FetchedSize, saved.Bytes)
			}
		})
	}
}

// TestNodeKilled shows that with a replica a state outlives the node that saved it,
// and that without one it is a miss.
func TestNodeKilled(t *testing.T) {
	long(t)
	e := prepare(t)
	for _, c := range []struct {
		replicas string
		miss     bool
	}{{"1", false}, {"0", true}} {
		t.Run("replicas="+c.replicas, func(t *testing.T) {
			cluster, a, b := pair(t, harness.ClusterOptions{Flags: func(int) []string { return []string{"--replicas", c.replicas} }})
			saved := e.Save(t, a.Path("llama.cpp"), slot)
			cluster.WaitQuiet()
			if !c.miss {
				harness.Poll(t, "the copy is there", func() bool { return b.Status().Tier(t, "memory").Blocks == 1 })
			}
			a.Kill()
			b.WaitState(a, "failed")
			restored, err := e.TryRestore(t.Context(), b.Path("llama.cpp"), slot)
			switch {
			case c.miss:
				wantMiss(t, err)
			case err != nil:
				t.Error(err)
			default:
				if diff := Diff(restored, saved); diff != "" {
					t.Errorf("restored process differs: %s", diff)
				}
			}
		})
	}
}

// TestNodeLostWhileRestoring kills the only holder of a state while the state is on its way, or has it remove the
// state. The state then is a miss or whole, and never a part.
func TestNodeLostWhileRestoring(t *testing.T) {
	long(t)
	e := prepare(t)
	for _, how := range []string{"killed", "removed"} {
		t.Run(how, func(t *testing.T) {
			c, a, b := pair(t, harness.ClusterOptions{PeerTimeout: time.Minute})
			saved := e.WithPrompt(101, 800).Save(t, a.Path("llama.cpp"), slot)
			c.WaitQuiet()
			// Some seconds for the state.
			c.Net.Run(a.Index, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "8mbit", "burst", "64kb", "latency", "400ms")
			begin := received(t, c, b)
			p, err := e.Start(t.Context(), "restore", b.Path("llama.cpp", slot))
			must(t, err)
			harness.Poll(t, "the state is on its way", func() bool { return received(t, c, b)-begin > 256<<10 })
			if how == "killed" {
				a.Kill()
			} else {
				evict(t, "--tier", "memory", "--force", "--all", a.Dir)
				if err := os.Remove(a.Path("llama.cpp", slot)); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
			restored, err := p.Wait()
			if err != nil {
				wantMiss(t, err)
			} else if diff := Diff(restored, saved); diff != "" {
				t.Errorf("restored process differs: %s", diff)
			}
			t.Logf("%s: %v", how, err)
		})
	}
}

// TestNodeDamaged shows that a state whose bytes on the SSD of its only holder have
// changed is a miss on both nodes.
func TestNodeDamaged(t *testing.T) {
	long(t)
	e := prepare(t)
	c, a, b := pair(t, harness.ClusterOptions{Options: harness.Options{Disk: "64MiB"}})
	e.Save(t, a.Path("llama.cpp"), slot)
	state := read(t, a.Path("llama.cpp", slot))
	a.Stop()
	a.DropMemory()
	damage(t, a.DiskDir, state)
	a.Restart()
	slots(t, a.Daemon)
	c.WaitJoined()
	for _, n := range []*harness.Node{b, a} {
		_, err := e.TryRestore(t.Context(), n.Path("llama.cpp"), slot)
		wantMiss(t, err)
	}
	if n := a.Status().Secondary(t, "disk").Corrupt; n == 0 {
		t.Error("no block was found corrupt; the test shows nothing")
	}
	saved := e.Save(t, b.Path("llama.cpp"), slot)
	c.WaitQuiet()
	if diff := Diff(e.Restore(t, a.Path("llama.cpp"), slot), saved); diff != "" {
		t.Errorf("restored process differs: %s", diff)
	}
}

// received returns how many bytes a node has received.
func received(t *testing.T, c *harness.Cluster, n *harness.Node) uint64 {
	t.Helper()
	traffic, err := c.Net.Traffic(n.Index)
	must(t, err)
	return traffic.ReceivedBytes
}
