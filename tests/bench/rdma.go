package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/tests/harness/netns"
)

// noFabric says why there are no figures of the fabric.
func noFabric(*bench) string {
	if _, err := fabric.Probe(); err != nil {
		return fmt.Sprintf("%v (go run -tags=giouring,ofi -ldflags=-checklinkname=0 ./tests/bench -only rdma)", err)
	}
	return netns.Lacks()
}

// child is a process of this program with a role, which answers lines with lines.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// child starts one until the end of the job. The words of before, if any, are before its command. Like start of server
// it must be called from the main goroutine.
func (j *job) child(r role, before ...string) *child {
	argv := append(before, childArgs(r)...)
	c := &child{cmd: exec.CommandContext(j.ctx, argv[0], argv[1:]...)}
	c.cmd.Env, c.cmd.Stderr = plainEnv(), os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.in = get(c.cmd.StdinPipe())
	c.out = bufio.NewReader(get(c.cmd.StdoutPipe()))
	must(c.cmd.Start())
	j.later(func() { must(errors.Join(c.in.Close(), c.cmd.Wait())) })
	return c
}

// ask sends a line and reads the answer.
func (c *child) ask(question, answer any) {
	err := json.NewEncoder(c.in).Encode(question)
	if err == nil {
		var line []byte
		if line, err = c.out.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, answer)
		}
	}
	if err != nil {
		must(fmt.Errorf("child: %w", err))
	}
}

// rdmaPair is a holder and a reader, each in a namespace.
type rdmaPair struct {
	*job
	net            *netns.Net
	holder, reader *child
	congestion     string // control of all connections
}

func (j *job) rdmaPair() *rdmaPair {
	p := &rdmaPair{job: j, net: j.network(2)}
	// One congestion control is the default in both namespaces: libfabric has no setting for it, and bbr slows traffic
	// within the machine. Reno is always there and allowed.
	for _, p.congestion = range []string{"cubic", "reno"} {
		err := error(nil)
		for i := range 2 {
			err = errors.Join(err, p.net.Do(i, func() error {
				return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(p.congestion), 0)
			}))
		}
		if err == nil {
			break
		}
	}
	j.await("the links are up", func() bool { // libfabric leaves out links without a carrier
		up := true
		for i := range 2 {
			must(p.net.Do(i, func() error {
				return try(func() {
					device := get(net.InterfaceByName(deviceOf(p.net.Addr(i))))
					up = up && device.Flags&net.FlagRunning != 0
				})
			}))
		}
		return up
	})
	node := func(i int) *child {
		return j.child(role{Name: rdmaRole, Path: p.net.Addr(i)}, "nsenter", "--net="+p.net.Path(i))
	}
	p.holder, p.reader = node(0), node(1)
	return p
}

// order makes a node carry out an order.
func order(c *child, o rdmaOrder) (a rdmaAnswer) {
	c.ask(o, &a)
	if a.Error != "" {
		must(fmt.Errorf("node: %s", a.Error))
	}
	return a
}

// fabrics measures the fabric beside our TCP transport and iperf3, as bare transports, without mount and cluster.
func (j *job) fabrics() {
	p := j.rdmaPair()
	blocks := rdmaBlocks{Sizes: j.config.sizes}
	for _, size := range blocks.Sizes {
		blocks.Counts = append(blocks.Counts, min(256, j.config.count(size)))
	}
	held := order(p.holder, rdmaOrder{Hold: &blocks})
	order(p.reader, rdmaOrder{Connect: held.Offer})
	order(p.reader, rdmaOrder{Verify: true})
	table := j.table("One-sided reads by libfabric over TCP, beside our TCP transport",
		fmt.Sprintf("(%s; two processes in two namespaces, which share this machine's processors with the wire; congestion control %s; "+
			"each to a new file in memory, with its checksum, as the peer tier does it; "+
			"every byte of every block was compared before and after the passes; iperf3: the better of 1 and 4 streams)",
			held.Shape, p.congestion),
		"size", "depth", "iperf3 GB/s", "tcp GB/s", "fabric GB/s", "to iperf3", "to tcp", "goal", "CPU s/GB of tcp, fabric")
	cpu := series{}
	sides := j.iperf(p.net, p.congestion, series{})
	var rows []func(series)
	for _, size := range j.config.sizes {
		for _, depth := range []int{1, 8} {
			name := fmt.Sprintf(", %s, depth %d", sizeText(size), depth)
			for _, way := range []string{tcpWay, fabricWay} {
				sides = append(sides, side{way + name, func(int) float64 {
					before := p.cpu()
					a := order(p.reader, rdmaOrder{Pass: &rdmaPass{Way: way, Size: size, Depth: depth, Time: j.passTime}})
					cpu[way+name] = append(cpu[way+name], (p.cpu()-before).Seconds()/(float64(a.Bytes)/1e9))
					return a.Rate / 1e9
				}})
			}
			rows = append(rows, func(figs series) {
				tcp, fab, goal := figs[tcpWay+name], figs[fabricWay+name], 0.0
				if size >= mib { // the fabric uses the same wire, without a network card to help
					goal = 0.90
				}
				best, ratio := bestIperf(figs), figs.over(fabricWay+name, tcpWay+name)
				table.row(sizeText(size), depth, figs[best], fmt.Sprintf("%.2f, %s", median(tcp), tcp.spread()), fmt.Sprintf("%.2f, %s", median(fab), fab.spread()),
					figs.over(fabricWay+name, best), ratio, j.atLeast(goal, ratio), fmt.Sprintf("%.2f, %.2f", median(cpu[tcpWay+name]), median(cpu[fabricWay+name])))
			})
		}
	}
	figs := j.rotate(0, j.rounds, sides)
	order(p.reader, rdmaOrder{Verify: true})
	for _, row := range rows {
		row(figs)
	}
}

func (p *rdmaPair) cpu() time.Duration {
	return cpuTimeOf(p.holder.cmd.Process.Pid) + cpuTimeOf(p.reader.cmd.Process.Pid)
}
