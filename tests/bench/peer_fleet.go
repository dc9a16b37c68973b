package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fleetNodes   = 50
	fleetHolders = 5      // have the blocks
	fleetBlocks  = 20_000 // of each of them
	fleetKills   = 2
	fleetSettle  = 60 * time.Second
	fleetRest    = 15 * time.Second
)

// fleet is many nodes on one machine.
type fleet struct {
	*peers
	table         *table
	locations     string
	settle, rest  time.Duration // before the nodes are idle, and while they are
	blocks, kills int           // of each holder; of holders
}

// fleet measures what many nodes need until they know each other, what each costs, and how soon all know of a dead one.
func (p *peerBench) fleet(ctx context.Context) error {
	nodes, f := fleetNodes, fleet{settle: fleetSettle, rest: fleetRest, blocks: fleetBlocks, kills: fleetKills}
	if p.config.quick {
		nodes, f = fleetHolders+2, fleet{settle: time.Second, rest: time.Second, blocks: 100, kills: 1}
	}
	f.table = p.report.table("fleet", fmt.Sprintf("%d nodes on this machine", nodes),
		fmt.Sprintf("(one round of each, means of the nodes; idle: %v, from %v after the start on; %d nodes store blocks of %s, and the others grow; known: by all nodes)",
			f.rest, f.settle, fleetHolders, sizeText(heapBlockBytes)),
		"what", "peer.locations", "value", "min-max", "goal", "")
	for _, f.locations = range []string{"all", "owned"} {
		if err := f.measure(ctx, p, nodes); err != nil {
			return err
		}
		f.blocks /= 10 // owned: each store asks an owner
	}
	return nil
}

// measure measures one cluster.
func (f *fleet) measure(ctx context.Context, p *peerBench, nodes int) (err error) {
	memory := 64*mib + f.blocks*heapBlockBytes
	f.peers, err = p.join(ctx, peerOptions{nodes: nodes, memoryBytes: memory, flags: []string{"--peer-locations", f.locations}})
	defer func() { err = errors.Join(err, f.close()) }()
	if err != nil {
		return err
	}
	f.add("from the start of all but one at once until all are known, s", 12, f.joined.Seconds())
	if err := f.idle(ctx); err != nil {
		return err
	}
	sets, err := f.remote(ctx)
	if err != nil {
		return err
	}
	return f.deaths(ctx, sets)
}

// add reports the mean of figures; a goal of 0 is none.
func (f *fleet) add(what string, goal float64, samples ...float64) {
	sum := 0.0
	for _, v := range samples {
		sum += v
	}
	r := row{Topic: "fleet", Target: "kvfs, locations " + f.locations, Threads: len(f.nodes), Unit: what, Value: sum / float64(len(samples)), Samples: samples}
	f.say("fleet, locations %s: %s: %.4g", f.locations, what, r.Value)
	cells := []string{what, f.locations, fmt.Sprintf("%.4g", r.Value), "", "", ""}
	if len(samples) > 1 {
		cells[3] = spread(samples)
	}
	if goal > 0 {
		cells[4], cells[5] = fmt.Sprintf("<= %g", goal), f.report.judge(&r, goal, r.Value <= goal)
	}
	f.report.add(r)
	f.table.add(cells...)
}

// idle measures nodes with nothing to do.
func (f *fleet) idle(ctx context.Context) error {
	if err := pause(ctx, f.settle); err != nil {
		return err
	}
	before, err := each(f.nodes, usedCPU)
	if err == nil {
		err = pause(ctx, f.rest)
	}
	if err != nil {
		return err
	}
	after, err := each(f.nodes, usedCPU)
	if err != nil {
		return err
	}
	for i := range after {
		after[i] = 100 * (after[i] - before[i]) / f.rest.Seconds()
	}
	f.add("processor time of an idle daemon, % of a core", 0.5, after...)
	resident, err := each(f.nodes, residentBytes)
	if err != nil {
		return err
	}
	for i := range resident {
		resident[i] /= mib
	}
	f.add("resident memory of a daemon, MiB", 43, resident...)
	open, err := each(f.nodes, openFiles)
	if err == nil {
		f.add("open descriptors of a daemon", 0, open...)
	}
	return err
}

// each returns a figure of each node.
func each(nodes []*target, get func(*target) (float64, error)) ([]float64, error) {
	out := make([]float64, len(nodes))
	for i, n := range nodes {
		var err error
		if out[i], err = get(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func usedCPU(n *target) (float64, error) {
	cpu, err := n.server.cpu()
	return cpu.Seconds(), err
}

func residentBytes(n *target) (float64, error) {
	fields, err := n.server.stat()
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(fields[21])
	return float64(pages * os.Getpagesize()), err
}

// openFiles is what the kernel tells as size of the directory, from Linux 6.2 on.
func openFiles(n *target) (float64, error) {
	info, err := os.Stat(fmt.Sprintf("/proc/%d/fd", n.server.process.Load().Pid))
	if err != nil {
		return 0, err
	}
	return float64(info.Size()), nil
}

func indexBytes(n *target) (float64, error) {
	s, err := readStatus(n)
	if err != nil {
		return 0, err
	}
	return s.Cluster.Node.Index.Bytes, nil
}

// remote stores blocks on some nodes, and measures how much the others grow. The sets are of those nodes.
func (f *fleet) remote(ctx context.Context) ([]*blockSet, error) {
	others := f.nodes[fleetHolders:]
	figures := []struct {
		what string
		goal float64
		get  func(*target) (float64, error)
	}{
		{"resident memory for each of %d remote blocks, bytes", 53, residentBytes},
		{"index of each of %d remote blocks, bytes", 28.5, indexBytes},
	}
	before := make([][]float64, len(figures))
	var err error
	for i, g := range figures {
		if before[i], err = each(others, g.get); err != nil {
			return nil, err
		}
	}
	sets := make([]*blockSet, fleetHolders)
	for i, n := range f.nodes[:fleetHolders] {
		if sets[i], err = newBlockSet(n, fmt.Sprintf("fleet%d", i), heapBlockBytes, i*f.blocks, f.blocks); err != nil {
			return nil, err
		}
		if err := f.writer.once(ctx, newWork(1, f.blocks, sets[i].store)); err != nil {
			return nil, err
		}
	}
	if err := f.awaitEach(ctx, "all know of all blocks", others, func(n *target) (bool, error) {
		for _, s := range sets {
			if known, err := f.sees(n, s, f.blocks-1); !known || err != nil {
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		return nil, err
	}
	if f.locations != "all" { // too few blocks are kept of those of the others
		return sets, nil
	}
	if err := pause(ctx, f.settle/4); err != nil {
		return nil, err
	}
	for i, g := range figures {
		after, err := each(others, g.get)
		if err != nil {
			return nil, err
		}
		count := fleetHolders * f.blocks
		for k := range after {
			after[k] = (after[k] - before[i][k]) / float64(count)
		}
		f.add(fmt.Sprintf(g.what, count), g.goal, after...)
	}
	return sets, nil
}

// sees reports whether a node has the name of block i of a set, which is in the mount of another node.
func (f *fleet) sees(n *target, set *blockSet, i int) (bool, error) {
	name := filepath.Base(unix.BytePtrToString(set.final.at(i)))
	_, err := os.Stat(filepath.Join(n.dir, filepath.Base(set.dir), name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// deaths kills holders of blocks, one after the other.
func (f *fleet) deaths(ctx context.Context, sets []*blockSet) error {
	var known, nowhere []float64
	for i, set := range sets[:f.kills] {
		others := f.nodes[i+1:]
		begin := time.Now()
		f.nodes[i].server.crash()
		if err := f.awaitEach(ctx, "a dead node is known", others, func(n *target) (bool, error) {
			members, err := clusterMembers(n)
			return err == nil && !slices.ContainsFunc(members, func(m member) bool { return m.Name == fmt.Sprint("node", i) && m.State == "alive" }), err
		}); err != nil {
			return err
		}
		known = append(known, time.Since(begin).Seconds())
		try := 0 // each time another name: the kernel remembers those that were there
		if err := f.awaitEach(ctx, "the blocks of a dead node are found nowhere", others, func(n *target) (bool, error) {
			try++
			there, err := f.sees(n, set, try%(f.blocks-1))
			return !there, err
		}); err != nil {
			return err
		}
		nowhere = append(nowhere, time.Since(begin).Seconds())
	}
	f.add("a killed node is known after, s", 15, known...)
	f.add("its blocks are found nowhere after, s", 15, nowhere...)
	return nil
}
