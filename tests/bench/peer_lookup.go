package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// ownedNodes is how many nodes have owned locations: each of six knows half of the names.
const ownedNodes = 6

// lookups measures stat on one node of names that others have, and of names that no node has, and counts packets: in three
// nodes that know all names, and in six of which each knows half.
func (p *peerBench) lookups(ctx context.Context) error {
	count := 10_000
	if p.config.quick {
		count = 500
	}
	table := p.report.table("lookup", fmt.Sprintf("Look-up of %d names in another node's memory", count),
		"(stat, 1 thread, each name once; packets of all control and bulk channels at the node that looks, and of gossip, which goes on with time)",
		"nodes", "names", "us", "packets of TCP", "of gossip", "goal", "")
	if err := p.lookIn(ctx, table, count, peerOptions{nodes: 3, memoryBytes: 4*count*lookupBytes + 256*mib}); err != nil {
		return err
	}
	return p.lookIn(ctx, table, count, peerOptions{
		nodes: ownedNodes, memoryBytes: 4*count*lookupBytes + 256*mib, flags: []string{"--peer-locations", "owned"},
	})
}

const lookupBytes = 4 * kib

// lookIn measures look-ups of one cluster.
func (p *peerBench) lookIn(ctx context.Context, table *table, count int, o peerOptions) (err error) {
	const size = lookupBytes
	c, err := p.join(ctx, o)
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	reader := c.nodes[2]
	if o.nodes == ownedNodes {
		if err := p.await(ctx, "the node knows half of the names", func() (bool, error) {
			s, err := readStatus(reader)
			return err == nil && s.Cluster.Node.Share > 0.4 && s.Cluster.Node.Share < 0.6, err
		}); err != nil {
			return err
		}
	}
	var present []*blockSet // On the reader: half of them of each other node.
	for i, n := range c.nodes[:2] {
		from, err := newBlockSet(n, "lookup", size, i*count/2, count/2)
		if err != nil {
			return err
		}
		if err := p.writer.once(ctx, newWork(1, from.count, from.store)); err != nil {
			return err
		}
		to, err := newBlockSet(reader, "lookup", size, i*count/2, count/2)
		if err != nil {
			return err
		}
		present = append(present, to)
	}
	// The last one of each, so that the others are not in the kernel's cache of names.
	for _, set := range present {
		last := *set
		last.count, last.final.flat = 1, set.final.flat[(set.count-1)*set.final.stride:]
		if err := c.known(ctx, &last); err != nil {
			return err
		}
	}
	absent, err := newBlockSet(reader, "lookup", size, count, count)
	if err != nil {
		return err
	}
	if err := c.countPorts(2); err != nil {
		return err
	}
	half := newWork(1, count, func(cl *client, i int) error {
		set := present[i*2/count]
		return cl.stat(set.final.at(i%set.count), size)
	})
	if err := c.lookupRow(ctx, table, "present", half); err != nil {
		return err
	}
	return c.lookupRow(ctx, table, "absent", newWork(1, count, func(cl *client, i int) error {
		if err := cl.stat(absent.final.at(i), size); !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("absent name: got %v, want ENOENT", err)
		}
		return nil
	}))
}

// countPorts makes a node count the packets of control and bulk of all nodes.
func (c *peers) countPorts(node int) error {
	members, err := clusterMembers(c.nodes[node])
	if err != nil {
		return err
	}
	for _, m := range members {
		for _, addr := range []string{m.ControlAddr, m.BulkAddr} {
			_, port, err := net.SplitHostPort(addr)
			if err == nil {
				err = c.net.Count(node, port)
			}
			if err != nil {
				return fmt.Errorf("address of %s: %w", m.Name, err)
			}
		}
	}
	return nil
}

// lookupRow does all of the work once. The nodes sometimes exchange other packets, so a few packets
// are no failure; one for a hundred names would be.
func (c *peers) lookupRow(ctx context.Context, table *table, what string, w *work) error {
	tcp, udp, err := c.net.Counted(2)
	if err != nil {
		return err
	}
	w.once = true
	result, err := c.readers.run(ctx, w, time.Hour)
	if err != nil {
		return err
	}
	tcpAfter, udpAfter, err := c.net.Counted(2)
	if err != nil {
		return err
	}
	nodes, goal, verdict := "3", fmt.Sprintf("< %d", w.count/100), ""
	packets := row{Topic: "lookup", Target: what, Threads: 1, Value: float64(tcpAfter - tcp), Unit: fmt.Sprintf("packets for %d names", w.count)}
	us := row{Topic: "lookup", Target: what, Threads: 1, Value: 1e6 / result.perSec, Unit: "us"}
	if len(c.nodes) == ownedNodes {
		nodes, goal = "6, owned locations", ""
		packets.Target, us.Target = what+", owned", what+", owned"
	} else {
		verdict = c.report.judge(&packets, float64(w.count/100), packets.Value <= float64(w.count/100))
	}
	c.report.add(packets)
	c.report.add(us)
	table.add(nodes, what, fmt.Sprintf("%.1f", us.Value), fmt.Sprint(tcpAfter-tcp), fmt.Sprint(udpAfter-udp), goal, verdict)
	return nil
}
