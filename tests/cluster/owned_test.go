package cluster

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// owned makes a cluster of six nodes of which each knows about half of what the others have.
func owned(opts harness.ClusterOptions) harness.ClusterOptions {
	opts.Nodes, opts.Owned, opts.Flags = 6, true, withFlags(opts.Flags, "--peer-locations", "owned")
	return opts
}

// withFlags adds flags to those of each node.
func withFlags(flags func(node int) []string, more ...string) func(node int) []string {
	return func(node int) (all []string) {
		if flags != nil {
			all = flags(node)
		}
		return append(all, more...)
	}
}

// long skips a test in a short run: it does with owned locations what another one does without.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		harness.Skip(t, "a short run does this with all locations only")
	}
}

// share returns which part of all keys a node follows.
func share(n *harness.Node) float64 {
	return n.Status().Raw["cluster"].(map[string]any)["node"].(map[string]any)["followed_share"].(float64)
}

// waitOwned waits until the nodes follow only what they own, among so many members.
func (w *world) waitOwned(members int, nodes ...*harness.Node) {
	w.t.Helper()
	for _, n := range nodes {
		harness.Poll(w.t, n.Name+" follows its share", func() bool {
			got, want := share(n), 3/float64(members)
			return got > want-0.03 && got < want+0.03
		})
	}
}
