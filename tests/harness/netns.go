package harness

import (
	"net"
	"strconv"
	"testing"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

// Net is a network of namespaces whose methods fail the test instead of returning
// errors.
type Net struct {
	*netns.Net
	tb testing.TB
}

// NewNet makes a network of nodes that is gone when the test ends. It first removes networks of
// dead test processes. The test is skipped if a network cannot be made.
func NewNet(tb testing.TB, nodes int) *Net {
	tb.Helper()
	if why := netns.Lacks(); why != "" {
		Skip(tb, "%s", why)
	}
	if err := netns.Sweep(); err != nil {
		tb.Logf("networks of dead tests: %v", err)
	}
	n, err := netns.New(nodes)
	must(tb, err)
	tb.Cleanup(func() {
		if err := n.Close(); err != nil {
			tb.Error(err)
		}
	})
	all := &Net{n, tb}
	for i := range nodes {
		Poll(tb, "the link of node "+strconv.Itoa(i)+" runs", func() bool { return all.running(i) })
	}
	return all
}

// running reports whether the kernel has seen the carrier of a node's link. Until then some
// programs do not use the link, though bytes pass.
func (n *Net) running(i int) (running bool) {
	n.tb.Helper()
	n.In(i, func() {
		list, err := net.Interfaces()
		n.check(err)
		for _, link := range list {
			running = running || link.Flags&net.FlagLoopback == 0 && link.Flags&net.FlagRunning != 0
		}
	})
	return running
}

// In calls fn with the calling thread in a node's namespace: see netns.Net.Do.
func (n *Net) In(i int, fn func()) {
	n.tb.Helper()
	n.check(n.Do(i, func() error { fn(); return nil }))
}

// Run runs a command in a node's namespace and returns its output.
func (n *Net) Run(i int, name string, args ...string) string {
	n.tb.Helper()
	out, err := n.Net.Run(i, name, args...)
	n.check(err)
	return out
}

// PartitionOneWay drops packets of node from to node to.
func (n *Net) PartitionOneWay(from, to int) {
	n.tb.Helper()
	n.check(n.Net.PartitionOneWay(from, to))
}

// Partition drops packets between two nodes.
func (n *Net) Partition(i, j int) {
	n.tb.Helper()
	n.check(n.Net.Partition(i, j))
}

// Isolate drops packets between a node and all other nodes.
func (n *Net) Isolate(i int) {
	n.tb.Helper()
	n.check(n.Net.Isolate(i))
}

// Heal ends all partitions.
func (n *Net) Heal() {
	n.tb.Helper()
	n.check(n.Net.Heal())
}

// LinkDown takes away the carrier of a node's link, LinkUp brings it back.
func (n *Net) LinkDown(i int) {
	n.tb.Helper()
	n.check(n.Net.LinkDown(i))
}

// LinkUp undoes LinkDown.
func (n *Net) LinkUp(i int) {
	n.tb.Helper()
	n.check(n.Net.LinkUp(i))
}

// Count adds to the TCP ports whose packets a node counts.
func (n *Net) Count(i int, ports ...string) {
	n.tb.Helper()
	n.check(n.Net.Count(i, ports...))
}

// Counted returns how many packets a node has sent and received: of TCP on the ports
// of Count, and of UDP.
func (n *Net) Counted(i int) (tcp, udp uint64) {
	n.tb.Helper()
	tcp, udp, err := n.Net.Counted(i)
	n.check(err)
	return tcp, udp
}

func (n *Net) check(err error) {
	n.tb.Helper()
	if err != nil {
		n.tb.Fatal(err)
	}
}
