package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/tests/harness/netns"
)

const (
	peerReaders  = 8 // threads
	gossipPort   = "7946"
	clusterLimit = time.Minute // for anything on which the nodes must agree
	iperfName    = "iperf3"
)

// peers are daemons in network namespaces that have joined each other.
type peers struct {
	*job
	net   *netns.Net
	nodes []*target
	// joined is the time from the start of the second node, and of all after it at once, until the nodes followed each
	// other.
	joined time.Duration
}

type peerOptions struct {
	nodes       int
	memoryBytes int // of each
	secure      bool
	congestion  string // empty: that of the host
	zoned       bool   // the first node is in a zone of its own
	flags       []string
}

// network makes namespaces until the end of the job.
func (j *job) network(nodes int) *netns.Net {
	must(netns.Sweep())
	n := get(netns.New(nodes))
	j.later(func() { must(n.Close()) })
	return n
}

// join makes a network and daemons in it until the end of the job, and waits until they follow each other.
func (j *job) join(o peerOptions) *peers {
	if available := memInfo("MemAvailable"); o.nodes*o.memoryBytes > available/3*2 {
		must(fmt.Errorf("%d MiB of memory are free: too little", available/mib))
	}
	c := &peers{job: j, net: j.network(o.nodes)}
	memory, keys := j.dirIn(j.config.shmDir), ""
	if o.secure {
		keys = j.dirIn(os.TempDir())
		j.command(j.kvfsPath, "keys", "create", filepath.Join(keys, "gossip.keys"))
		j.command(j.kvfsPath, "certs", "init", "--dir", filepath.Join(keys, "certs"))
	}
	for i := range o.nodes {
		s := j.kvfs(fmt.Sprintf("peer%d", i), mebibytes(o.memoryBytes), c.flags(i, o, memory, keys)...)
		s.argv = append([]string{"nsenter", "--net=" + c.net.Path(i)}, s.argv...)
		s.adopts = false // detach frees the memory of a killed one
		j.later(func() { detach(filepath.Join(memory, fmt.Sprint("node", i))) })
		c.nodes = append(c.nodes, &target{name: kvfsName, dir: s.mount, server: s, tier: "peer"})
	}
	j.later(func() { // a few at a time: they wait for one lock
		var g errgroup.Group
		g.SetLimit(4)
		for _, n := range c.nodes {
			g.Go(n.server.stop)
		}
		must(g.Wait())
	})
	var rest []*server
	for _, n := range c.nodes[1:] {
		rest = append(rest, n.server)
	}
	must(start(j.ctx, c.nodes[0].server)) // the others find the first one
	begin := time.Now()
	must(start(j.ctx, rest...))
	c.awaitEach("the nodes follow each other", c.nodes, func(n *target) bool {
		members := clusterMembers(n)
		return len(members) == o.nodes && !slices.ContainsFunc(members, func(m cluster.Member) bool { return !m.Self && m.Feed != "following" })
	})
	c.joined = time.Since(begin)
	return c
}

func (c *peers) flags(i int, o peerOptions, memory, keys string) []string {
	name := fmt.Sprintf("node%d", i)
	flags := append([]string{"--bind", net.JoinHostPort(c.net.Addr(i), gossipPort), "--node-name", name,
		"--memory-dir", filepath.Join(memory, name), // the file of removals is beside it, and stays
		// The reader waits for a peer that gets no time on this machine: a block that it does not give would be a miss.
		"--peer-timeout", clusterLimit.String()}, o.flags...)
	if i > 0 {
		flags = append(flags, "--join", net.JoinHostPort(c.net.Addr(0), gossipPort))
	}
	if o.zoned {
		flags = append(flags, "--zone", []string{"far", "near"}[min(i, 1)])
	}
	if o.congestion != "" {
		flags = append(flags, "--peer-congestion", o.congestion)
	}
	if !o.secure {
		return append(flags, "--insecure")
	}
	certs := filepath.Join(keys, "certs")
	c.command(c.kvfsPath, "certs", "issue", "--dir", certs, name)
	cert := filepath.Join(certs, name)
	return append(flags, "--peer-gossip-keys", filepath.Join(keys, "gossip.keys"), "--tls-ca", filepath.Join(certs, "ca.pem"),
		"--tls-cert", cert+".pem", "--tls-key", cert+"-key.pem")
}

func clusterMembers(t *target) (list []cluster.Member) {
	readJSON(t, "members", &list)
	return list
}

// awaitEach polls one node after the other until it is done.
func (j *job) awaitEach(what string, nodes []*target, done func(*target) bool) {
	j.await(what, func() bool {
		for ; len(nodes) > 0; nodes = nodes[1:] {
			if !done(nodes[0]) {
				return false
			}
		}
		return true
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	if !errors.Is(err, os.ErrNotExist) {
		must(err)
	}
	return err == nil
}

// known waits until a node sees the blocks of a set, which is in its own mount.
func (j *job) known(set *blockSet, from int) {
	j.await("blocks of one node are seen on another", func() bool {
		for ; from < set.count; from++ {
			if !exists(set.final.text(from)) {
				return false
			}
		}
		return true
	})
}

// lay writes blocks on node 0 and returns them as node 1 sees them. Node 1 has read each once, untimed, and compared it
// byte by byte.
func (c *peers) lay(size, count int) *blockSet {
	group := fmt.Sprintf("p%d", size)
	c.storeMarked(newBlockSet(c.nodes[0], group, size, 0, count))
	to := newBlockSet(c.nodes[1], group, size, 0, count)
	c.known(to, 0)
	c.promote(to, 1, 0, c.readWhole(to))
	return to
}

// promote empties the memory of node 1 and reads all blocks there. It fails if they were not all fetched. It returns
// GB/s, and the processor time of the daemons for a GB.
func (c *peers) promote(set *blockSet, readers, round int, op func(*client, int)) (speed, perGB float64) {
	total := set.count * set.size
	cpu := func() (used time.Duration) {
		c.settle(c.nodes...) // the last RELEASE counts too
		for _, n := range c.nodes {
			used += n.server.cpuTime()
		}
		return used
	}
	(&coldBlocks{c.job, c.nodes[1], set}).promoting(set.count, func() {
		before := cpu()
		speed = gbs(total, c.inOrder(readers, shuffled(set, round), op))
		perGB = (cpu() - before).Seconds() * 1e9 / float64(total)
	})
	return speed, perGB
}

// iperf returns sides that measure the network from node 0 to node 1 with 1 and with 4 streams. perGB gets the
// processor seconds of both ends. An empty congestion is the host's.
func (j *job) iperf(n *netns.Net, congestion string, perGB series) (sides []side) {
	for _, streams := range []int{1, 4} {
		name := fmt.Sprintf("%s %d", iperfName, streams)
		sides = append(sides, side{name, func(int) float64 {
			speed, cpu := j.iperfPass(n, streams, congestion)
			perGB[name] = append(perGB[name], cpu/speed)
			return speed
		}})
	}
	return sides
}

func bestIperf(figs series) string {
	one, four := iperfName+" 1", iperfName+" 4"
	if median(figs[one]) > median(figs[four]) {
		return one
	}
	return four
}

// iperfPass returns the GB/s that node 1 receives from node 0, and how many processors both ends use for that.
func (j *job) iperfPass(n *netns.Net, streams int, congestion string) (speed, cpu float64) {
	inside := func(i int, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(j.ctx, "nsenter", append([]string{"--net=" + n.Path(i), iperfName}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
		return cmd
	}
	server := inside(0, "--server", "--bind", n.Addr(0))
	must(server.Start())
	defer func() { // it goes on until it is stopped
		server.Process.Kill()
		server.Wait()
	}()
	seconds := "2"
	if j.config.quick {
		seconds = "1"
	}
	args := []string{"--client", n.Addr(0), "--reverse", "--json", "--time", seconds, "--parallel", fmt.Sprint(streams)}
	if congestion != "" {
		args = append(args, "--congestion", congestion)
	}
	var err error
	for begin := time.Now(); time.Since(begin) < clusterLimit; j.pause(20 * time.Millisecond) { // the server needs a moment before it listens
		var out bytes.Buffer
		client := inside(1, args...)
		client.Stdout = &out
		runErr := client.Run()
		if speed, cpu, err = iperfRate(out.Bytes()); err == nil {
			return speed, cpu
		}
		err = errors.Join(err, runErr)
	}
	must(err)
	return 0, 0
}

// iperfRate returns the GB/s received, and the processors of both ends, from the document of --json.
func iperfRate(text []byte) (speed, cpu float64, err error) {
	var doc struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
			CPU struct {
				Host   float64 `json:"host_total"`
				Remote float64 `json:"remote_total"`
			} `json:"cpu_utilization_percent"`
		} `json:"end"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return 0, 0, fmt.Errorf("iperf3: %w", err)
	}
	if doc.Error != "" || doc.End.Received.BitsPerSecond == 0 {
		return 0, 0, fmt.Errorf("iperf3: no figure: %s", doc.Error)
	}
	return doc.End.Received.BitsPerSecond / 8e9, (doc.End.CPU.Host + doc.End.CPU.Remote) / 100, nil
}

// promotions measures reads on one node of blocks that only another node has in memory.
func (j *job) promotions() {
	table := j.table("Promotion from another node's memory",
		"(open and close on one node, whose memory was emptied before, of blocks in the memory of the other one, each once, "+
			"in random order: the block is in this node's memory when open returns; in other rounds with one read of it all in between; "+
			"both nodes, the wire and the readers share this machine's processors; iperf3 in the same direction, the "+
			"same rounds and with the same congestion control, without TLS: the better of 1 and 4 streams)",
		"connection", "block", "readers", "iperf3 GB/s", "and read GB/s", "promoted GB/s", "min-max", "to iperf3", "goal")
	cpuTable := j.table("Processor time of a promotion of 4 MiB by 8 readers",
		"(both daemons; iperf3: both ends, without TLS)", "connection", "daemons s/GB", "iperf3 s/GB", "to cubic without TLS", "goal")
	plain := 0.0
	for _, secure := range []bool{false, true} {
		name := map[bool]string{false: "cubic", true: "cubic, TLS"}[secure]
		j.say("peer: %s", name)
		j.scope(func(j *job) {
			daemons, iperf := j.promotionMode(table, name, secure)
			goal := j.verdict("1.4 times", daemons <= 1.4*plain)
			if !secure {
				plain, goal = daemons, j.verdict("0.40 s/GB", daemons <= 0.40)
			}
			cpuTable.row(name, daemons, iperf, daemons/plain, goal)
		})
	}
}

// promotionMode returns the processor seconds for each GB of 4 MiB by 8 readers, and those of iperf3.
func (j *job) promotionMode(table *table, connection string, secure bool) (daemons float64, iperf samples) {
	sizes, total := []int{mib, 4 * mib, 16 * mib}, 0
	for _, size := range sizes {
		total += size * j.config.count(size)
	}
	c := j.join(peerOptions{nodes: 2, memoryBytes: total*5/4 + 256*mib, congestion: "cubic", secure: secure})
	perGB := series{}
	sides := j.iperf(c.net, "cubic", perGB)
	name := func(size, readers int) string { return fmt.Sprintf("%s by %d", sizeText(size), readers) }
	for _, size := range sizes {
		set := c.lay(size, j.config.count(size))
		for _, readers := range []int{1, peerReaders} {
			add := func(name string, op func(*client, int)) {
				sides = append(sides, side{name, func(round int) float64 {
					speed, cpu := c.promote(set, readers, round, op)
					perGB[name] = append(perGB[name], cpu)
					return speed
				}})
			}
			add(name(size, readers), set.openClose)
			add(name(size, readers)+", and read", set.readMarked)
		}
	}
	figs := j.rotate(0, j.rounds, sides)
	best := bestIperf(figs)
	for _, size := range sizes {
		for _, readers := range []int{1, peerReaders} {
			goal, cell := 0.0, name(size, readers)
			if readers == peerReaders && size == 4*mib && !secure {
				goal = 0.90
			}
			ratio := figs.over(cell, best)
			table.row(connection, sizeText(size), readers, figs[best], figs[cell+", and read"], figs[cell], figs[cell].spread(), ratio, j.atLeast(goal, ratio))
		}
	}
	return median(perGB[name(4*mib, peerReaders)]), perGB[best]
}

// replicas measures how fast blocks written on one node get their copy on the other.
func (j *job) replicas() {
	table := j.table("Copies on another node",
		"(replicas: 1; 2 threads write on one node, \"writers\" is their speed meanwhile; \"copies\" counts from the first write until "+
			"the other node has all of them in memory; iperf3 in the same direction and with the same congestion control)",
		"block", "iperf3 GB/s", "copies GB/s", "min-max", "to iperf3", "writers GB/s")
	for _, size := range []int{mib, 4 * mib} {
		j.scope(func(j *job) {
			count := j.config.count(size)
			total := size * count
			c := j.join(peerOptions{nodes: 2, memoryBytes: total*5/4 + 256*mib, congestion: "cubic",
				flags: []string{"--replicas", "1", "--peer-queue", fmt.Sprintf("%dMiB", mebibytes(total*5/4))}})
			set := newBlockSet(c.nodes[0], "replica", size, 0, count)
			var writers samples
			figs := j.rotate(0, j.rounds, append(j.iperf(c.net, "cubic", series{}), side{kvfsName, func(int) float64 {
				pretouch(total*5/2 + 256*mib) // for the blocks on both nodes
				begin := time.Now()
				writers = append(writers, gbs(total, j.once(drainWriters, count, set.store)))
				j.await("all copies are there", func() bool { return c.nodes[1].memoryUsed() >= int64(total) })
				copied := gbs(total, time.Since(begin))
				set.clear()
				j.await("the removed are gone", func() bool { return c.nodes[1].memoryUsed() == 0 })
				return copied
			}}))
			best := bestIperf(figs)
			table.row(sizeText(size), figs[best], figs[kvfsName], figs[kvfsName].spread(), figs.over(kvfsName, best), writers)
		})
	}
}

// lookups measures stat on one node of names that others have, and of names that no node has, and counts packets: in
// three nodes that know all names, and in six of which each knows half.
func (j *job) lookups() {
	count := 10_000
	if j.config.quick {
		count = 500
	}
	table := j.table(fmt.Sprintf("Look-up of %d names in another node's memory", count),
		"(stat, 1 thread, each name once; packets of all control and bulk channels at the node that looks, and of gossip, which goes on with time)",
		"nodes", "names", "us", "packets of TCP", "of gossip", "goal")
	const reader, size = 2, 4 * kib
	for _, kind := range []struct {
		title string
		o     peerOptions
	}{{"3", peerOptions{nodes: 3}}, {"6, owned locations", peerOptions{nodes: 6, flags: []string{"--peer-locations", "owned"}}}} {
		j.scope(func(j *job) {
			kind.o.memoryBytes = 4*count*size + 256*mib
			c := j.join(kind.o)
			at := c.nodes[reader]
			if kind.o.nodes == 6 {
				j.await("the node knows half of the names", func() bool {
					share := at.status().Cluster.Node.Share
					return share > 0.4 && share < 0.6
				})
			}
			var present []*blockSet // on the reader: half of them of each other node
			for i, n := range c.nodes[:2] {
				from := newBlockSet(n, "lookup", size, i*count/2, count/2)
				j.once(1, from.count, from.store)
				present = append(present, newBlockSet(at, "lookup", size, i*count/2, count/2))
			}
			for _, set := range present {
				j.known(set, set.count-1) // the last alone: the others are not to be in the kernel's cache of names
			}
			absent := newBlockSet(at, "lookup", size, count, count)
			c.countPorts(reader)
			row := func(what string, op func(*client, int)) {
				tcp, udp := c.packets(reader)
				elapsed := j.once(1, count, op)
				tcpAfter, udpAfter := c.packets(reader)
				goal := ""
				if kind.o.nodes == 3 { // a few other packets are no failure; one for a hundred names would be
					goal = j.verdict(fmt.Sprintf("< %d", count/100), tcpAfter-tcp <= uint64(count/100))
				}
				table.row(kind.title, what, fmt.Sprintf("%.1f", elapsed.Seconds()*1e6/float64(count)), tcpAfter-tcp, udpAfter-udp, goal)
			}
			row("present", func(cl *client, i int) { present[i*2/count].stat(cl, i%(count/2)) })
			row("absent", func(cl *client, i int) {
				if err := try(func() { absent.stat(cl, i) }); !errors.Is(err, unix.ENOENT) {
					must(fmt.Errorf("absent name: got %v, want ENOENT", err))
				}
			})
		})
	}
}

func (c *peers) packets(node int) (tcp, udp uint64) {
	tcp, udp, err := c.net.Counted(node)
	must(err)
	return tcp, udp
}

// countPorts makes a node count the packets of control and bulk of all nodes.
func (c *peers) countPorts(node int) {
	for _, m := range clusterMembers(c.nodes[node]) {
		for _, addr := range []string{m.ControlAddr, m.BulkAddr} {
			_, port, err := net.SplitHostPort(addr)
			must(err)
			must(c.net.Count(node, port))
		}
	}
}

const (
	spreadNodes = 9
	spreadSize  = 16 * mib
	spreadLink  = "400mbit" // of each node: the processors of this machine have little to do then
	spreadGoal  = 4.5
)

// spread measures how long a block takes to reach all nodes that ask for it at once, in one zone and from another zone,
// and how often the node that has it sends it.
func (j *job) spread() {
	table := j.table("A block that all nodes want at once",
		fmt.Sprintf("(one node has it; each node sends %s at most; the time until one reader has it, and until all have it that ask at once)", spreadLink),
		"block", "readers", "in the zone of the node", "one, ms", "all, ms", "min-max", "all to one", "goal", "sent by the node", "goal")
	nodes := spreadNodes
	if j.config.quick {
		nodes = 3
	}
	for _, zoned := range []bool{false, true} {
		j.scope(func(j *job) {
			c := j.join(peerOptions{nodes: nodes, memoryBytes: 2*j.rounds*spreadSize + 128*mib, zoned: zoned})
			for i := range nodes {
				if out, err := c.net.Run(i, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", spreadLink, "burst", "256kb", "latency", "100ms"); err != nil {
					j.skip(fmt.Sprintf("this kernel cannot slow down a link: %v %s", err, out))
				}
			}
			set := newBlockSet(c.nodes[0], "hot", spreadSize, 0, 2*j.rounds)
			var sent samples
			figs := j.rotate(0, j.rounds, []side{
				{"one", func(round int) float64 { return c.readAtOnce(set, 2*round, c.nodes[1:2]) }},
				{"all", func(round int) float64 {
					before := lentBlocks(c.nodes[0])
					defer func() { sent = append(sent, lentBlocks(c.nodes[0])-before) }()
					return c.readAtOnce(set, 2*round+1, c.nodes[1:])
				}},
			})
			where, ratio := "yes", figs.over("all", "one")
			goal, sentGoal := j.verdict(fmt.Sprintf("<= %g", spreadGoal), ratio <= spreadGoal), ""
			if zoned {
				where, goal, sentGoal = "no", "", j.verdict("<= 1", median(sent) <= 1)
			}
			table.row(sizeText(spreadSize), nodes-1, where, fmt.Sprintf("%.0f", median(figs["one"])), fmt.Sprintf("%.0f", median(figs["all"])),
				figs["all"].spread(), ratio, goal, fmt.Sprintf("%.0f (%s)", median(sent), sent.spread()), sentGoal)
		})
	}
}

// lentBlocks returns how often a node has sent a block to others.
func lentBlocks(n *target) float64 { return get(strconv.ParseFloat(n.told("lent_blocks"), 64)) }

// readAtOnce stores block i and has some nodes read it at once, when they know of it. It returns ms.
func (c *peers) readAtOnce(set *blockSet, i int, readers []*target) float64 {
	set.store(c.pool.clients[0], i)
	name := filepath.Join(filepath.Base(set.dir), blockName(i))
	c.awaitEach("the readers know the block", readers, func(n *target) bool { return exists(filepath.Join(n.dir, name)) })
	var g errgroup.Group
	begin := time.Now()
	for _, n := range readers {
		g.Go(func() error {
			got, err := os.ReadFile(filepath.Join(n.dir, name))
			if err == nil {
				err = try(func() { checkMarks(got, i) })
			}
			return err
		})
	}
	must(g.Wait())
	return time.Since(begin).Seconds() * 1e3
}
