package cluster

import (
	"math/rand/v2"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// patienceRounds is how many rounds go by between those in which a partition lasts
// until the nodes have declared each other dead.
const patienceRounds = 12

// TestPartitions cuts the network in two, in both directions or in one, while both sides write, replace and remove,
// and heals it, again and again. After each round all nodes have the changes that one side alone made. Where both
// sides wrote, all nodes have the version of one of them.
func TestPartitions(t *testing.T) { partition(t, harness.ClusterOptions{}, rounds(t, 15, 5)) }

// TestPartitionsOwned does that with nodes that know only a share of what the others have.
func TestPartitionsOwned(t *testing.T) {
	long(t)
	partition(t, owned(harness.ClusterOptions{}), rounds(t, 8, 1))
}

func partition(t *testing.T, opts harness.ClusterOptions, n int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p := &partitions{
		world: newWorld(t, opts), random: rand.New(rand.NewPCG(seed, 0)), want: map[string]uint64{},
	}
	for round := range n {
		p.round(round)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	p.agree()
}

type partitions struct {
	*world
	random *rand.Rand
	want   map[string]uint64 // version of each name that one side alone changes; 0: removed
}

func (p *partitions) round(round int) {
	p.t.Helper()
	alone := p.Nodes[p.random.IntN(len(p.Nodes))]
	var rest []*harness.Node
	for _, n := range p.Nodes {
		if n != alone {
			rest = append(rest, n)
		}
	}
	long := round%patienceRounds == patienceRounds-1
	how := p.random.IntN(3)
	for _, n := range rest {
		if how != 1 {
			p.Net.PartitionOneWay(alone.Index, n.Index)
		}
		if how != 2 {
			p.Net.PartitionOneWay(n.Index, alone.Index)
		}
	}
	if long && how == 0 {
		alone.WaitState(rest[0], "failed")
		rest[0].WaitState(alone, "failed")
	}
	other := rest[p.random.IntN(len(rest))]
	p.change(alone, round)
	p.change(other, round)
	both := block("both-%d", round)
	p.mustWrite(alone, both, 3000+round)
	p.mustWrite(other, both, 4000+round)
	for _, n := range p.Nodes {
		p.mustRead(n, both)
		p.mustRead(n, block("mine-%s-%d", alone.Name, p.random.IntN(4)))
	}
	p.Net.Heal()
	p.WaitJoined()
	for name, version := range p.want {
		p.wantEverywhere(name, version)
	}
	for _, n := range p.Nodes {
		harness.Poll(p.t, "one version of what both sides wrote", func() bool { return p.mustRead(n, both) != 0 })
	}
}

// change does something to some of a node's own names, in each round another thing.
func (p *partitions) change(n *harness.Node, round int) {
	p.t.Helper()
	for i := range 4 {
		name := block("mine-%s-%d", n.Name, i)
		if p.want[name] != 0 && p.random.IntN(3) == 0 {
			p.remove(n, name)
			p.want[name] = 0
		} else {
			p.want[name] = p.mustWrite(n, name, 2000+10*round+i)
		}
	}
}
