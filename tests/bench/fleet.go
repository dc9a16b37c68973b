package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kvfs/kvfs/cluster"
)

const fleetHolders = 5 // nodes that have the blocks

type fleet struct {
	*peers
	table         *table
	locations     string
	settle, rest  time.Duration // before the nodes are idle, and while they are
	blocks, kills int           // of each holder; of holders
}

// fleet measures what many nodes need until they know each other, what each costs, and how soon all know of a dead one.
func (j *job) fleet() {
	nodes, f := 50, fleet{settle: time.Minute, rest: 15 * time.Second, blocks: 20_000, kills: 2}
	if j.config.quick {
		nodes, f = fleetHolders+2, fleet{settle: time.Second, rest: time.Second, blocks: 100, kills: 1}
	}
	f.table = j.table(fmt.Sprintf("%d nodes on this machine", nodes),
		fmt.Sprintf("(one round of each, means of the nodes; idle: %v, from %v after the start on; %d nodes store blocks of %s, and the others grow; known: by all nodes)",
			f.rest, f.settle, fleetHolders, sizeText(heapBlockBytes)),
		"what", "peer.locations", "value", "min-max", "goal")
	for _, f.locations = range []string{"all", "owned"} {
		j.scope(func(j *job) {
			f.peers = j.join(peerOptions{nodes: nodes, memoryBytes: 64*mib + f.blocks*heapBlockBytes, flags: []string{"--peer-locations", f.locations}})
			f.add("from the start of all but one at once until all are known, s", 12, f.joined.Seconds())
			f.idle()
			f.deaths(f.remote())
		})
		f.blocks /= 10 // owned: each store asks an owner
	}
}

// add reports the mean of figures; a goal of 0 is none.
func (f *fleet) add(what string, goal float64, values ...float64) {
	mean, spread := 0.0, ""
	for _, v := range values {
		mean += v / float64(len(values))
	}
	if len(values) > 1 {
		spread = samples(values).spread()
	}
	f.say("fleet, locations %s: %s: %.4g", f.locations, what, mean)
	f.table.row(what, f.locations, fmt.Sprintf("%.4g", mean), spread, f.atMostText(goal, mean, "<= %g"))
}

func each(nodes []*target, figure func(*target) float64) []float64 {
	out := make([]float64, len(nodes))
	for i, n := range nodes {
		out[i] = figure(n)
	}
	return out
}

// growth returns by how much, in a unit, a figure of each node grows while f runs.
func growth(nodes []*target, unit float64, figure func(*target) float64, f func()) []float64 {
	before := each(nodes, figure)
	f()
	after := each(nodes, figure)
	for i := range after {
		after[i] = (after[i] - before[i]) / unit
	}
	return after
}

func (f *fleet) idle() {
	f.pause(f.settle)
	cpu := func(n *target) float64 { return n.server.cpuTime().Seconds() }
	f.add("processor time of an idle daemon, % of a core", 0.5, growth(f.nodes, f.rest.Seconds()/100, cpu, func() { f.pause(f.rest) })...)
	f.add("resident memory of a daemon, MiB", 43, each(f.nodes, func(n *target) float64 { return residentBytes(n) / mib })...)
	f.add("open descriptors of a daemon", 0, each(f.nodes, func(n *target) float64 {
		return float64(get(os.Stat(fmt.Sprintf("/proc/%d/fd", n.server.process.Load().Pid))).Size()) // their number, from Linux 6.2 on
	})...)
}

func residentBytes(n *target) float64 {
	statm := get(os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.server.process.Load().Pid)))
	return float64(get(strconv.Atoi(string(bytes.Fields(statm)[1]))) * os.Getpagesize())
}

// remote stores blocks on some nodes, and measures how much the others grow. The sets are of those nodes.
func (f *fleet) remote() []*blockSet {
	others, count := f.nodes[fleetHolders:], fleetHolders*f.blocks
	sets := make([]*blockSet, fleetHolders)
	store := func() {
		for i, n := range f.nodes[:fleetHolders] {
			sets[i] = newBlockSet(n, fmt.Sprintf("fleet%d", i), heapBlockBytes, i*f.blocks, f.blocks)
			f.once(1, f.blocks, sets[i].store)
		}
		f.awaitEach("all know of all blocks", others, func(n *target) bool {
			return !slices.ContainsFunc(sets, func(s *blockSet) bool { return !sees(n, s, f.blocks-1) })
		})
		f.pause(f.settle / 4)
	}
	if f.locations != "all" { // too few blocks are kept of those of the others
		store()
		return sets
	}
	var index []float64
	indexBytes := func(n *target) float64 { return float64(n.status().Cluster.Node.Index.Bytes) }
	resident := growth(others, float64(count), residentBytes, func() { index = growth(others, float64(count), indexBytes, store) })
	f.add(fmt.Sprintf("resident memory for each of %d remote blocks, bytes", count), 53, resident...)
	f.add(fmt.Sprintf("index of each of %d remote blocks, bytes", count), 28.5, index...)
	return sets
}

// sees reports whether a node has the name of block i of a set, which is in the mount of another node.
func sees(n *target, set *blockSet, i int) bool {
	return exists(filepath.Join(n.dir, filepath.Base(set.dir), filepath.Base(set.final.text(i))))
}

// deaths kills holders of blocks, one after the other.
func (f *fleet) deaths(sets []*blockSet) {
	var known, nowhere []float64
	for i, set := range sets[:f.kills] {
		others := f.nodes[i+1:]
		begin := time.Now()
		f.nodes[i].server.crash()
		f.awaitEach("a dead node is known", others, func(n *target) bool {
			return !slices.ContainsFunc(clusterMembers(n), func(m cluster.Member) bool { return m.Name == fmt.Sprint("node", i) && m.State == "alive" })
		})
		known = append(known, time.Since(begin).Seconds())
		try := 0 // each time another name: the kernel remembers those that were there
		f.awaitEach("the blocks of a dead node are found nowhere", others, func(n *target) bool {
			try++
			return !sees(n, set, try%(f.blocks-1))
		})
		nowhere = append(nowhere, time.Since(begin).Seconds())
	}
	f.add("a killed node is known after, s", 15, known...)
	f.add("its blocks are found nowhere after, s", 15, nowhere...)
}
