package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// lookups measures stat on one of three nodes of names that the others have, and of names that no
// node has, and counts packets.
func (p *peerBench) lookups(ctx context.Context) (err error) {
	const size = 4 * kib
	count := 10_000
	if p.config.quick {
		count = 500
	}
	c, err := p.join(ctx, peerOptions{nodes: 3, memoryBytes: 4*count*size + 256*mib})
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	reader := c.nodes[2]
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
	table := p.report.table("lookup", fmt.Sprintf("Look-up of %d names in three nodes", count),
		"(stat, 1 thread, each name once; packets of all control and bulk channels at the node that looks, and of gossip, which goes on with time)",
		"names", "us", "packets of TCP", "of gossip", "goal", "")
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
	goal := w.count / 100
	packets := row{Topic: "lookup", Target: what, Threads: 1, Value: float64(tcpAfter - tcp), Unit: fmt.Sprintf("packets for %d names", w.count)}
	verdict := c.report.judge(&packets, float64(goal), packets.Value <= float64(goal))
	c.report.add(packets)
	us := row{Topic: "lookup", Target: what, Threads: 1, Value: 1e6 / result.perSec, Unit: "us"}
	c.report.add(us)
	table.add(what, fmt.Sprintf("%.1f", us.Value), fmt.Sprint(tcpAfter-tcp), fmt.Sprint(udpAfter-udp), fmt.Sprintf("< %d", goal), verdict)
	return nil
}
