package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	peerMaxBytes = 16 * mib
	// peerGoal is the goal for 8 readers of 4 MiB as a share of iperf3's rate.
	peerGoal = 0.90
	// peerCPUGoal is the goal for processor seconds of both daemons for each GB of cpuCell, tlsCPUGoal how many times
	// that without TLS it may be with TLS.
	peerCPUGoal = 0.40
	tlsCPUGoal  = 1.4
)

func peerSizes() []int { return []int{mib, 4 * mib, 16 * mib} }

// peerCell is one row of the table.
type peerCell struct {
	size, readers int
}

func (c peerCell) name() string { return fmt.Sprintf("%s by %d", sizeText(c.size), c.readers) }

// withRead names the rounds in which the blocks are also read.
func (c peerCell) withRead() string { return c.name() + ", and read" }

func peerCells() []peerCell {
	var cells []peerCell
	for _, size := range peerSizes() {
		cells = append(cells, peerCell{size, 1}, peerCell{size, peerReaders})
	}
	return cells
}

// peerMode is a way to connect.
type peerMode struct {
	name, congestion string
	secure           bool
}

// modes are the measured modes: cubic, the host's default if it is another one, and TLS.
func (p *peerBench) modes() []peerMode {
	modes := []peerMode{{"cubic", "cubic", false}}
	if p.hostCC != "" && p.hostCC != "cubic" && !p.config.quick {
		modes = append(modes, peerMode{p.hostCC + " (the host's)", "", false})
	}
	return append(modes, peerMode{"cubic, TLS", "cubic", true})
}

// iperfStreams are the numbers of streams of the baseline; the better one counts.
func iperfStreams() []int { return []int{1, 4} }

// promotions measures reads on one node of blocks that only another node has in memory.
func (p *peerBench) promotions(ctx context.Context) error {
	table := p.report.table("peer", "Promotion from another node's memory",
		"(open and close on one node, whose memory was emptied before, of blocks in the memory of the other one, each once, "+
			"in random order: the block is in this node's memory when open returns; in other rounds with one read of it all in between; "+
			"both nodes, the wire and the readers share this machine's processors; iperf3 in the same direction, the "+
			"same rounds and with the same congestion control, without TLS: the better of 1 and 4 streams)",
		"connection", "block", "readers", "iperf3 GB/s", "and read GB/s", "promoted GB/s", "min-max", "to iperf3", "goal", "")
	cpuTable := p.report.table("peer", "Processor time of a promotion of "+cpuCell().name()+" readers",
		"(both daemons; iperf3: both ends, without TLS)", "connection", "daemons s/GB", "iperf3 s/GB", "to cubic without TLS", "goal", "")
	var plain float64
	for i, mode := range p.modes() {
		perGB, perSec, err := p.promotionMode(ctx, table, mode)
		if err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
		if i == 0 {
			plain = perGB
		}
		p.cpuRow(cpuTable, mode, perGB, plain, perSec)
	}
	return nil
}

// cpuCell is the row whose processor time is reported.
func cpuCell() peerCell { return peerCell{4 * mib, peerReaders} }

func (p *peerBench) cpuRow(table *table, mode peerMode, perGB, plain float64, perSec series) {
	cell := cpuCell()
	r := row{Topic: "peer", Target: cell.name(), BlockBytes: cell.size, Threads: cell.readers, Value: perGB,
		Unit: "processor seconds of both daemons for each GB, " + mode.name}
	verdict := []string{"", ""}
	switch {
	case mode.secure:
		verdict = []string{fmt.Sprintf("%.1f times", tlsCPUGoal), p.report.judge(&r, tlsCPUGoal, perGB <= tlsCPUGoal*plain)}
	case mode.congestion == "cubic":
		verdict = []string{fmt.Sprintf("%.2f s/GB", peerCPUGoal), p.report.judge(&r, peerCPUGoal, perGB <= peerCPUGoal)}
	}
	p.report.add(r)
	base := "no iperf3"
	if p.iperf.missing == "" {
		b := row{Topic: "peer", Target: baseLine(perSec), Unit: "processor seconds of both ends for each GB, " + mode.name}
		b.Samples = perSec[iperfCPU(b.Target)]
		b.Value = median(b.Samples)
		p.report.add(b)
		base = fmt.Sprintf("%.2f", b.Value)
	}
	table.add(append([]string{mode.name, fmt.Sprintf("%.2f", perGB), base, fmt.Sprintf("%.2f", perGB/plain)}, verdict...)...)
}

// promotionMode returns also the processor seconds for each GB of cpuCell, and the figures of iperf3.
func (p *peerBench) promotionMode(ctx context.Context, table *table, mode peerMode) (perGB float64, perSec series, err error) {
	p.say("peer: %s", mode.name)
	total := 0
	for _, size := range peerSizes() {
		total += size * p.config.count(size)
	}
	c, err := p.join(ctx, peerOptions{nodes: 2, memoryBytes: total*5/4 + 256*mib, congestion: mode.congestion, secure: mode.secure})
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return 0, nil, err
	}
	sets := map[int]*blockSet{} // On the reader, by size.
	for _, size := range peerSizes() {
		if sets[size], err = c.lay(ctx, size, p.config.count(size)); err != nil {
			return 0, nil, err
		}
	}
	perSec = series{}
	for round := range p.config.rounds {
		if err := c.iperfRound(ctx, perSec, mode); err != nil {
			return 0, nil, err
		}
		cells := peerCells()
		for i := range cells {
			cell := cells[(i+round)%len(cells)]
			set := sets[cell.size]
			for title, op := range map[string]func(*client, int) error{cell.name(): set.open, cell.withRead(): set.readMarked} {
				rate, err := c.promote(ctx, set, cell.readers, round, op)
				if err != nil {
					return 0, nil, fmt.Errorf("%s: %w", title, err)
				}
				perSec[title] = append(perSec[title], rate)
				if title == cpuCell().name() {
					perGB += c.spent.Seconds() * 1e9 / float64(set.count*set.size*p.config.rounds)
				}
			}
		}
	}
	for _, cell := range peerCells() {
		p.promotionRow(table, mode, cell, perSec)
	}
	return perGB, perSec, nil
}

// lay writes blocks on node 0 and returns them as node 1 sees them. Node 1 has read each once,
// untimed, and compared it byte by byte.
func (c *peers) lay(ctx context.Context, size, count int) (*blockSet, error) {
	group := fmt.Sprintf("p%d", size)
	from, err := newBlockSet(c.nodes[0], group, size, 0, count)
	if err != nil {
		return nil, err
	}
	copy(c.writer.clients[0].buf, c.pattern)
	err = c.writer.once(ctx, newWork(1, count, func(cl *client, i int) error {
		stampPages(cl.buf[:size], i)
		return cl.store(from.temp.at(i), from.final.at(i), size)
	}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.dir, err)
	}
	to, err := newBlockSet(c.nodes[1], group, size, 0, count)
	if err == nil {
		err = c.known(ctx, to)
	}
	if err != nil {
		return nil, err
	}
	_, err = c.promote(ctx, to, 1, 0, func(cl *client, i int) error {
		if err := cl.read(to.final.at(i), size); err != nil {
			return err
		}
		return verifyPages(cl.buf[:size], c.pattern, i)
	})
	return to, err
}

// shuffled are the indexes of a set, in another order each round.
func shuffled(set *blockSet, round int) []int {
	return rand.New(rand.NewPCG(uint64(round), uint64(set.size))).Perm(set.count)
}

// cpu returns the processor time that the daemons have used.
func (c *peers) cpu() (sum time.Duration, err error) {
	for _, n := range c.nodes {
		used, cpuErr := n.server.cpu()
		sum, err = sum+used, errors.Join(err, cpuErr)
	}
	return sum, err
}

// promote empties the memory of node 1 and reads all blocks there. It fails if they were not all
// fetched. Then spent is the processor time of the daemons for that.
func (c *peers) promote(ctx context.Context, set *blockSet, readers, round int, op func(*client, int) error) (float64, error) {
	if err := errors.Join(c.drop(ctx, c.nodes[1]), c.nodes[0].settle(ctx)); err != nil {
		return 0, err
	}
	if err := pretouch(set.count*set.size*5/4 + 256*mib); err != nil {
		return 0, err
	}
	before, err := c.cpu()
	if err != nil {
		return 0, err
	}
	result, err := c.readers.run(ctx, sequence(readers, shuffled(set, round), op), time.Hour)
	if err == nil { // the last RELEASE counts too
		err = errors.Join(c.nodes[1].settle(ctx), c.nodes[0].settle(ctx))
	}
	if err != nil {
		return 0, err
	}
	after, err := c.cpu()
	if err != nil {
		return 0, err
	}
	c.spent = after - before
	s, err := readStatus(c.nodes[1])
	if err != nil {
		return 0, err
	}
	if got, want := s.Tiers[0].UsedBytes, int64(set.count*set.size); got < want {
		return 0, fmt.Errorf("%d of %d bytes are in the reader's memory: not all was promoted", got, want)
	}
	return float64(set.count*set.size) / result.elapsed.Seconds(), nil
}

// pretouch touches bytes of new memory. A virtual machine returns freed memory to its host after a moment (free page
// reporting), and the first use after that takes ten times as long.
func pretouch(bytes int) error {
	p, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	unix.Madvise(p, unix.MADV_HUGEPAGE) // if possible
	for at := 0; at < len(p); at += pageBytes {
		p[at] = 1
	}
	return os.NewSyscallError("munmap", unix.Munmap(p))
}

func iperfTitle(streams int) string { return fmt.Sprintf("%s %d", iperfName, streams) }

// iperfCPU names the processor seconds of both ends for each GB.
func iperfCPU(title string) string { return title + " s/GB" }

// iperfRound measures the baseline once.
func (c *peers) iperfRound(ctx context.Context, perSec series, mode peerMode) error {
	if c.iperf.missing != "" {
		return nil
	}
	seconds := 2
	if c.config.quick {
		seconds = 1
	}
	for _, streams := range iperfStreams() {
		rate, cpu, err := c.iperf.run(ctx, c.net, streams, seconds, mode.congestion)
		if err != nil {
			return err
		}
		title := iperfTitle(streams)
		perSec[title], perSec[iperfCPU(title)] = append(perSec[title], rate), append(perSec[iperfCPU(title)], cpu*1e9/rate)
	}
	return nil
}

// baseLine returns the name of the better baseline.
func baseLine(perSec series) string {
	var titles []string
	for _, streams := range iperfStreams() {
		titles = append(titles, iperfTitle(streams))
	}
	return slices.MaxFunc(titles, func(a, b string) int {
		return int(median(perSec[a]) - median(perSec[b]))
	})
}

func (p *peerBench) promotionRow(table *table, mode peerMode, cell peerCell, perSec series) {
	r := row{Topic: "peer", Target: cell.name(), BlockBytes: cell.size, Threads: cell.readers,
		Unit: "GB/s, " + mode.name, Samples: gigabytes(perSec[cell.name()])}
	r.Value = median(r.Samples)
	base, verdict := p.versusIperf(&r, perSec, mode, cell)
	p.report.add(r)
	read := row{Topic: "peer", Target: cell.withRead(), BlockBytes: cell.size, Threads: cell.readers,
		Unit: r.Unit, Samples: gigabytes(perSec[cell.withRead()])}
	read.Value = median(read.Samples)
	p.report.add(read)
	cells := []string{mode.name, sizeText(cell.size), fmt.Sprint(cell.readers), base,
		fmt.Sprintf("%.2f", read.Value), fmt.Sprintf("%.2f", r.Value), spread(r.Samples)}
	table.add(append(cells, verdict...)...)
}

// versusIperf returns the cells for the baseline, and for ratio, goal and verdict.
func (p *peerBench) versusIperf(r *row, perSec series, mode peerMode, cell peerCell) (string, []string) {
	goal := 0.0
	if cell.readers == peerReaders && cell.size == 4*mib && !mode.secure {
		goal = peerGoal
	}
	if p.iperf.missing != "" {
		return "no iperf3", []string{"n/a", "", "skipped: install iperf3"}
	}
	name := baseLine(perSec)
	base := row{Topic: "peer", Target: name, Unit: "GB/s, " + mode.name, Samples: gigabytes(perSec[name])}
	base.Value = median(base.Samples)
	p.report.add(base)
	return fmt.Sprintf("%.2f", base.Value), p.versus(r, perSec, name, goal)
}
