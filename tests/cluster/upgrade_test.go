package cluster

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// before is a commit of the version before this one: its nodes follow everything and answer no questions.
const before = "704d6cd"

// TestRollingUpgrade replaces the nodes of a cluster of the version before by nodes of this one, one by one, and one of them
// back, while all of them write, read and remove. The new ones know all that the others have, or only their share.
func TestRollingUpgrade(t *testing.T) {
	long(t)
	old := harness.BuildCommit(t, before)
	for _, locations := range []string{"auto", "owned"} {
		t.Run(locations, func(t *testing.T) {
			const nodes = 4
			var upgraded [nodes]bool
			opts := harness.ClusterOptions{Nodes: nodes, Owned: locations == "owned", Binary: func(node int) string {
				if upgraded[node] {
					return ""
				}
				return old
			}}
			underLoad(t, opts, nodes+1, func(l *load, round int) {
				l.restart(l.Nodes[round%nodes], round%2 == 0, func(n *harness.Node) {
					upgraded[n.Index] = round < nodes // and the first one back in the end
					o := l.Options(n.Index)
					if upgraded[n.Index] {
						o.Flags = append(o.Flags, "--peer-locations", locations)
					}
					n.RestartWith(o)
				})
				if locations == "owned" && round == nodes-1 {
					l.waitOwned(nodes, l.Nodes...)
				}
			})
		})
	}
}
