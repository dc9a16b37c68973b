package gossip

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cluster/simnet"
)

// simulate runs f with a clock of its own. All that f starts has to end.
func simulate(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() {
			time.Sleep(time.Minute) // reason: the virtual clock; a probe of memberlist ends by its own timer
		})
		f(t)
	})
}

// startSim opens a node in a simulated network and joins it to others.
func startSim(t *testing.T, s *simnet.Net, name, addr, profile string, join ...string) *node {
	t.Helper()
	n := &node{events: &recorder{}}
	var err error
	n.Gossip, err = Open(Options{
		Name: name, Bind: "sim", Profile: profile, Rejoin: 10 * time.Second, Join: join, Events: n.events, Transport: s.Host(addr),
	})
	must(t, err)
	t.Cleanup(func() { closeAll(t, n) })
	return n.join(t)
}

func closeAll(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		check(t, n.Close())
	}
}

// until waits in virtual time, up to an hour of it, and returns how long it took.
func until(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > time.Hour {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(50 * time.Millisecond) // reason: the virtual clock
	}
	return time.Since(began)
}

// TestPartition shows, on the lan profile, that two halves lose each other, go on for
// longer than memberlist remembers the dead, and find each other again by themselves:
// without any address to join, and after they have changed meanwhile.
func TestPartition(t *testing.T) {
	simulate(t, func(t *testing.T) {
		s := simnet.New()
		left := []*node{startSim(t, s, "l0", "", "lan")}
		first := left[0].Self().Addr
		left = append(left, startSim(t, s, "l1", "", "lan", first))
		right := []*node{startSim(t, s, "r0", "", "lan", first), startSim(t, s, "r1", "", "lan", first)}
		for _, n := range right {
			n.seeds = nil
		}
		all := slices.Concat(left, right)
		waitSim(t, all...)
		inLeft := func(addr string) bool { return addr == left[0].Self().Addr || addr == left[1].Self().Addr }
		for round, away := range []time.Duration{5 * time.Second, 2 * time.Minute, 20 * time.Minute} {
			s.Cut(func(from, to string) bool { return inLeft(from) != inLeft(to) })
			time.Sleep(away) // reason: the virtual clock
			if away > time.Minute {
				waitSim(t, left...)
				waitSim(t, right...)
				if st := left[0].list.NumMembers(); st != 2 {
					t.Errorf("memberlist has %d members", st)
				}
			}
			meta := fmt.Sprint("round ", round)
			must(t, right[1].SetMeta([]byte(meta)))
			s.Cut(nil)
			waitSim(t, all...)
			until(t, "the change of the other half is known", func() bool {
				return slices.ContainsFunc(left[0].Nodes(), right[1].is) && slices.ContainsFunc(left[1].Nodes(), right[1].is)
			})
		}
	})
}

// waitSim is waitSees in virtual time.
func waitSim(t *testing.T, nodes ...*node) { known(t, nodes, len(nodes)-1) }

// known waits until all nodes have so many others, and returns how long it took.
func known(t *testing.T, nodes []*node, others int) time.Duration {
	t.Helper()
	return until(t, "all know", func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { return n.members.count() != others })
	})
}

// TestRestartElsewhere shows when a node that was killed is back, on the lan profile:
// with its address at once, with another one when its loss is noticed.
func TestRestartElsewhere(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprint("same address ", same), func(t *testing.T) {
			simulate(t, func(t *testing.T) {
				s := simnet.New()
				a := startSim(t, s, "a", "", "lan")
				b := startSim(t, s, "b", "", "lan", a.Self().Addr)
				c := startSim(t, s, "c", "", "lan", a.Self().Addr)
				waitSim(t, a, b, c)
				addr := c.Self().Addr
				closeAll(t, c)
				if !same {
					addr = ""
				}
				c = startSim(t, s, "c", addr, "lan", a.Self().Addr)
				must(t, c.SetMeta([]byte("new")))
				took := until(t, "a and b see c at its place", func() bool {
					return slices.ContainsFunc(a.Nodes(), c.is) && slices.ContainsFunc(b.Nodes(), c.is)
				})
				t.Logf("back after %v", took)
				if limit := map[bool]time.Duration{true: 2 * time.Second, false: 30 * time.Second}[same]; took > limit {
					t.Errorf("back after %v, %v is the limit", took, limit)
				}
			})
		})
	}
}

func (n *node) is(other Node) bool {
	self := n.Self()
	return other.Name == self.Name && other.Addr == self.Addr && string(other.Meta) == string(self.Meta)
}

// TestConvergence measures in virtual time, on the lan profile, how long it takes until
// all nodes know of one that joined, of one that left and of one that was lost. It runs
// 10 nodes, and up to KVFS_SIM nodes.
func TestConvergence(t *testing.T) {
	for _, size := range simnet.Sizes() {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			simulate(t, func(t *testing.T) { converge(t, size) })
		})
	}
}

func converge(t *testing.T, size int) {
	s := simnet.New()
	began := time.Now()
	all := []*node{startSim(t, s, "n0", "", "lan")}
	first := all[0].Self().Addr
	for i := range size - 1 {
		all = append(all, startSim(t, s, fmt.Sprint("n", i+1), "", "lan", first))
		if i%32 == 31 {
			time.Sleep(time.Second) // reason: the virtual clock
		}
	}
	waitSim(t, all...)
	start := time.Since(began)
	joined := startSim(t, s, "late", "", "lan", first)
	join := known(t, all, size)
	all = append(all, joined)
	left := all[1]
	all = slices.Delete(all, 1, 2)
	began = time.Now()
	must(t, left.Leave(t.Context()))
	known(t, all, size-1)
	leave := time.Since(began)
	lost := all[1]
	closeAll(t, left, lost)
	all = slices.Delete(all, 1, 2)
	loss := known(t, all, size-2)
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	t.Logf("%d nodes: start %v; heap %d MiB", size, start, mem.HeapInuse>>20)
	for _, f := range []struct {
		row  string
		took time.Duration
	}{
		{"all know a node that joined", join}, {"all know a node that left", leave},
		{"all know that a node was killed, and find its blocks no longer", loss},
	} {
		t.Log(simnet.Figure{Table: "all", Row: f.row, Column: fmt.Sprint(size), Value: f.took.Seconds(), Unit: "s"})
	}
}
