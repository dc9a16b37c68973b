package llama

import (
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
