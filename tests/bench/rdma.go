package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/tests/harness/netns"
)

const (
	// rdmaGoal is the goal from 1 MiB on as a share of the speed of our own TCP transport. The
	// fabric over its provider tcp uses the same wire, without a network card to help.
	rdmaGoal      = 0.90
	rdmaGoalBytes = mib
)

func rdmaDepths() []int { return []int{1, 8} }

// rdmaCell is one row of the table.
type rdmaCell struct {
	size, depth int
	bare        bool
}

func (c rdmaCell) title(way string) string {
	return fmt.Sprintf("%s, %s, depth %d, %s", way, sizeText(c.size), c.depth, c.kind())
}

func (c rdmaCell) kind() string {
	if c.bare {
		return "bytes"
	}
	return "blocks"
}

func (b *bench) rdmaCells() []rdmaCell {
	var cells []rdmaCell
	for _, bare := range []bool{false, true} {
		for _, size := range b.config.sizes {
			for _, depth := range rdmaDepths() {
				cells = append(cells, rdmaCell{size, depth, bare})
			}
		}
	}
	return cells
}

// rdmaProcess is a child with the role of a node.
type rdmaProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startRDMA must be called from the main goroutine, like start of server.
func startRDMA(ctx context.Context, n *netns.Net, i int) (*rdmaProcess, error) {
	argv, err := childArgs(role{Name: rdmaRole, Path: n.Addr(i)})
	if err != nil {
		return nil, err
	}
	argv = append([]string{"nsenter", "--net=" + n.Path(i)}, argv...)
	p := &rdmaProcess{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	p.cmd.Env, p.cmd.Stderr = plainEnv(), os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// do makes the node carry out an order.
func (p *rdmaProcess) do(o rdmaOrder) (rdmaAnswer, error) {
	var a rdmaAnswer
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		return a, fmt.Errorf("node: %w", err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("node: %w", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, fmt.Errorf("node: %s", a.Error)
	}
	return a, nil
}

func (p *rdmaProcess) close() error { return errors.Join(p.in.Close(), p.cmd.Wait()) }

// rdmaLacks returns why there are no figures of the fabric; "" if there are.
func rdmaLacks() string {
	if _, err := fabric.Probe(); err != nil {
		return fmt.Sprintf("%v (go run -tags=giouring,ofi -ldflags=-checklinkname=0 ./tests/bench -only rdma)", err)
	}
	return ""
}

// rdmaPair is a holder and a reader.
type rdmaPair struct {
	*peerBench
	net            *netns.Net
	holder, reader *rdmaProcess
	congestion     string // control of all connections
}

// setCongestion makes one congestion control the default in both namespaces: libfabric has no
// setting for it, and bbr slows traffic within the machine. Reno is always there and allowed.
func (p *rdmaPair) setCongestion() error {
	set := func(name string) error {
		var errs []error
		for i := range 2 {
			errs = append(errs, p.net.Do(i, func() error {
				return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(name), 0)
			}))
		}
		return errors.Join(errs...)
	}
	p.congestion = "cubic"
	if set(p.congestion) == nil {
		return nil
	}
	p.congestion = "reno"
	return set(p.congestion)
}

// newRDMAPair returns a pair that the caller must close also after an error.
func (p *peerBench) newRDMAPair(ctx context.Context) (*rdmaPair, error) {
	pair := &rdmaPair{peerBench: p}
	var err error
	if pair.net, err = netns.New(2); err != nil {
		return pair, err
	}
	if err := pair.setCongestion(); err != nil {
		return pair, fmt.Errorf("congestion control: %w", err)
	}
	if err := pair.awaitLinks(ctx); err != nil {
		return pair, err
	}
	if pair.holder, err = startRDMA(ctx, pair.net, 0); err != nil {
		return pair, err
	}
	pair.reader, err = startRDMA(ctx, pair.net, 1)
	return pair, err
}

// awaitLinks waits until the new links have a carrier: libfabric leaves out links without one.
func (p *rdmaPair) awaitLinks(ctx context.Context) error {
	return p.await(ctx, "the links are up", func() (bool, error) {
		up := true
		for i := range 2 {
			err := p.net.Do(i, func() error {
				name, err := deviceOf(p.net.Addr(i))
				if err != nil {
					return err
				}
				device, err := net.InterfaceByName(name)
				up = up && err == nil && device.Flags&net.FlagRunning != 0
				return err
			})
			if err != nil {
				return false, err
			}
		}
		return up, nil
	})
}

func (p *rdmaPair) close() error {
	var errs []error
	for _, n := range []*rdmaProcess{p.reader, p.holder} {
		if n != nil && n.cmd.Process != nil {
			errs = append(errs, n.close())
		}
	}
	if p.net != nil {
		errs = append(errs, p.net.Close())
	}
	return errors.Join(errs...)
}

// fabrics measures the fabric beside our TCP transport and iperf3, as bare transports, without
// mount and cluster.
func (p *peerBench) fabrics(ctx context.Context) (err error) {
	if why := rdmaLacks(); why != "" {
		p.report.skip("rdma", why)
		return nil
	}
	pair, err := p.newRDMAPair(ctx)
	defer func() { err = errors.Join(err, pair.close()) }()
	if err != nil {
		return err
	}
	blocks := rdmaBlocks{Sizes: p.config.sizes}
	for _, size := range blocks.Sizes {
		blocks.Counts = append(blocks.Counts, min(256, p.config.count(size)))
	}
	held, err := pair.holder.do(rdmaOrder{Hold: &blocks})
	if err != nil {
		return err
	}
	for _, o := range []rdmaOrder{{Connect: held.Offer}, {Verify: true}} {
		if _, err := pair.reader.do(o); err != nil {
			return err
		}
	}
	perSec, costs := series{}, map[string]*rdmaCost{}
	for round := range p.config.rounds {
		if err := pair.round(ctx, round, perSec, costs); err != nil {
			return err
		}
	}
	if _, err := pair.reader.do(rdmaOrder{Verify: true}); err != nil {
		return fmt.Errorf("after the passes: %w", err)
	}
	table := p.report.table("rdma", "One-sided reads by libfabric over TCP, beside our TCP transport",
		fmt.Sprintf("(%s; two processes in two namespaces, which share this machine's processors with the wire; congestion control %s; "+
			"blocks: each to a new file in memory, with its checksum, as the peer tier does it; bytes: to the same file again, without one; "+
			"every byte of every block was compared before and after the passes; iperf3: the better of 1 and 4 streams)",
			held.Shape, pair.congestion),
		"what", "size", "depth", "iperf3 GB/s", "tcp GB/s", "", "fabric GB/s", "", "to iperf3", "to tcp", "goal", "", "CPU s/GB of tcp, fabric", "")
	for _, cell := range p.rdmaCells() {
		p.rdmaRow(table, cell, perSec, costs)
	}
	return nil
}

// round measures everything once. Each round begins with another cell and another way.
func (p *rdmaPair) round(ctx context.Context, round int, perSec series, costs map[string]*rdmaCost) error {
	c := &peers{peerBench: p.peerBench, net: p.net}
	if err := c.iperfRound(ctx, perSec, peerMode{congestion: p.congestion}); err != nil {
		return err
	}
	cells, ways := p.rdmaCells(), []string{tcpWay, fabricWay}
	for i := range cells {
		cell := cells[(i+round)%len(cells)]
		for k := range ways {
			way := ways[(k+i+round)%len(ways)]
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			title := cell.title(way)
			if costs[title] == nil {
				costs[title] = &rdmaCost{}
			}
			rate, err := p.pass(cell, way, costs[title])
			if err != nil {
				return fmt.Errorf("%s: %w", title, err)
			}
			perSec[title] = append(perSec[title], rate)
		}
	}
	return nil
}

// rdmaCost is the processor time for moving bytes, on both sides.
type rdmaCost struct {
	cpu   time.Duration
	bytes int
}

// perGB returns seconds.
func (c *rdmaCost) perGB() float64 { return c.cpu.Seconds() / (float64(c.bytes) / 1e9) }

// pass measures one way once and adds to its cost.
func (p *rdmaPair) pass(cell rdmaCell, way string, cost *rdmaCost) (perSec float64, err error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	a, err := p.reader.do(rdmaOrder{Pass: &rdmaPass{
		Way: way, Size: cell.size, Depth: cell.depth, Time: p.config.passTime, Bare: cell.bare,
	}})
	if err != nil {
		return 0, err
	}
	after, err := p.cpu()
	cost.cpu += after - before
	cost.bytes += a.Bytes
	return a.Rate, err
}

// cpu is the processor time of both nodes.
func (p *rdmaPair) cpu() (time.Duration, error) {
	h, err1 := cpuTimeOf(p.holder.cmd.Process.Pid)
	r, err2 := cpuTimeOf(p.reader.cmd.Process.Pid)
	return h + r, errors.Join(err1, err2)
}

func (p *peerBench) rdmaRow(table *table, cell rdmaCell, perSec series, costs map[string]*rdmaCost) {
	rows := map[string]*row{}
	for _, way := range []string{tcpWay, fabricWay} {
		r := &row{Topic: "rdma", Target: cell.title(way), BlockBytes: cell.size, Threads: cell.depth,
			Unit: "GB/s, " + cell.kind(), Samples: gigabytes(perSec[cell.title(way)])}
		r.Value = median(r.Samples)
		rows[way] = r
	}
	r := rows[fabricWay]
	iperf, toIperf := "no iperf3", "n/a"
	if p.iperf.missing == "" {
		name := baseLine(perSec)
		iperf = fmt.Sprintf("%.2f", median(perSec[name])/1e9)
		toIperf = p.versus(r, perSec, name, 0)[0]
	}
	goal := 0.0
	if cell.size >= rdmaGoalBytes {
		goal = rdmaGoal
	}
	verdict := p.versus(r, perSec, cell.title(tcpWay), goal)
	p.report.add(*rows[tcpWay])
	p.report.add(*r)
	for _, way := range []string{tcpWay, fabricWay} {
		title := cell.title(way)
		p.report.add(row{Topic: "rdma", Target: title + ", CPU", BlockBytes: cell.size, Threads: cell.depth, Unit: "s/GB",
			Value: costs[title].perGB()})
		verdict = append(verdict, fmt.Sprintf("%.2f", costs[title].perGB()))
	}
	table.add(slices.Concat([]string{cell.kind(), sizeText(cell.size), fmt.Sprint(cell.depth), iperf,
		fmt.Sprintf("%.2f", rows[tcpWay].Value), spread(rows[tcpWay].Samples),
		fmt.Sprintf("%.2f", r.Value), spread(r.Samples), toIperf}, verdict)...)
}

// registrations measures the cost of making a file readable for peers.
func (p *peerBench) registrations(ctx context.Context) (err error) {
	if why := rdmaLacks(); why != "" {
		p.report.skip("registration", why)
		return nil
	}
	pair, err := p.newRDMAPair(ctx)
	defer func() { err = errors.Join(err, pair.close()) }()
	if err != nil {
		return err
	}
	sizes := []int{mib, gib}
	if p.config.quick || memInfo("MemAvailable") < 4*gib {
		sizes = []int{mib, 64 * mib}
	}
	ways := []struct {
		title string
		order rdmaRegister
	}{
		{"no cache", rdmaRegister{}},
		{"cache, miss", rdmaRegister{Cached: true}},
		{"cache, hit", rdmaRegister{Cached: true, Same: true}},
	}
	table := p.report.table("registration", "Registration of a file in memory with libfabric over TCP",
		"(and its close, us; a file that was not registered before, but for a hit; this provider pins no pages: a network card does, "+
			"some 15 us for 1 MiB and 15 to 40 ms for 1 GiB of small pages)",
		"size", "what", "us", "min-max")
	for _, size := range sizes {
		micros := series{}
		for round := range p.config.rounds {
			for i := range ways {
				w := ways[(i+round)%len(ways)]
				o := w.order
				o.Size, o.Count = size, 20
				if size > mib {
					o.Count = 2 // Making the files takes most of the time.
				}
				a, err := pair.holder.do(rdmaOrder{Register: &o})
				if err != nil {
					return fmt.Errorf("%s, %s: %w", sizeText(size), w.title, err)
				}
				micros[w.title] = append(micros[w.title], a.Micros...)
			}
		}
		for _, w := range ways {
			r := row{Topic: "registration", Target: w.title, BlockBytes: size, Unit: "us", Value: median(micros[w.title]), Samples: micros[w.title]}
			p.report.add(r)
			table.add(sizeText(size), w.title, fmt.Sprintf("%.1f", r.Value), spread(r.Samples))
		}
	}
	return nil
}
