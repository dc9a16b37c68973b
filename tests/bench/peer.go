package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

const (
	peerReaders  = 8 // threads
	gossipPort   = "7946"
	clusterLimit = time.Minute // for anything on which the nodes must agree
)

// peerTopics are about blocks of other nodes.
func peerTopics() []string {
	return []string{"peer", "peerlatency", "lookup", "replica", "spread", "fleet", "rdma", "registration"}
}

// peerBench is the common state of the topics of peers.
type peerBench struct {
	*bench
	readers *pool
	writer  *pool
	pattern []byte // content of the buffers of newClient
	iperf   *iperf
	keys    string // directory with keys and certificates; empty: not made yet
	hostCC  string // the congestion control that sockets have by default
}

// measurePeers measures the topics of peers. If one fails, the others are still measured.
func (b *bench) measurePeers(ctx context.Context) error {
	if !b.config.wants(peerTopics()...) || !slices.Contains(b.config.targets, kvfsName) {
		return nil
	}
	if why := netns.Lacks(); why != "" {
		for _, topic := range peerTopics() {
			if b.config.wants(topic) {
				b.report.skip(topic, why)
			}
		}
		return nil
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), peerReaders+2)))
	p, err := b.newPeerBench(ctx)
	defer p.close()
	if err != nil {
		return err
	}
	steps := map[string]func(context.Context) error{
		"peer": p.promotions, "peerlatency": p.latency, "lookup": p.lookups, "replica": p.replicas, "spread": p.spread,
		"fleet": p.fleet, "rdma": p.fabrics, "registration": p.registrations,
	}
	var errs []error
	for _, topic := range peerTopics() {
		if !b.config.wants(topic) || ctx.Err() != nil {
			continue
		}
		b.say("%s", topic)
		if err := steps[topic](ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", topic, err))
		}
	}
	return errors.Join(errs...)
}

// newPeerBench returns its result also after an error. The caller must close it.
func (b *bench) newPeerBench(ctx context.Context) (*peerBench, error) {
	p := &peerBench{bench: b}
	var err error
	if p.readers, err = newPool(peerReaders, peerMaxBytes); err != nil {
		return p, err
	}
	if p.writer, err = newPool(2, peerMaxBytes); err != nil {
		return p, err
	}
	p.pattern = make([]byte, peerMaxBytes)
	fillPattern(p.pattern)
	p.iperf = findIperf(ctx)
	cc, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control") // Absent: not told.
	p.hostCC = strings.TrimSpace(string(cc))
	line := "peers: network namespaces joined by veth; congestion control of the host: " + p.hostCC
	if p.iperf.missing != "" {
		line += "; NO IPERF3: " + p.iperf.missing
	} else {
		line += "; " + p.iperf.version
	}
	b.report.machine = append(b.report.machine, line)
	return p, netns.Sweep()
}

func (p *peerBench) close() {
	for _, c := range []*pool{p.readers, p.writer} {
		if c != nil {
			c.close() // Unmapping own memory does not fail.
		}
	}
	if p.keys != "" {
		os.RemoveAll(p.keys) // b.close tells if this is impossible.
	}
}

// peers are daemons that have joined each other.
type peers struct {
	*peerBench
	net   *netns.Net
	nodes []*target
	spent time.Duration // see promote
	// joined is the time from the start of the second node, and of all after it at once, until the nodes followed each other.
	joined time.Duration
}

// peerOptions say how to start peers.
type peerOptions struct {
	nodes       int
	memoryBytes int // of each
	secure      bool
	congestion  string // empty: that of the host
	zoned       bool   // the first node is in a zone of its own
	flags       []string
}

// join makes a network and daemons in it, and waits until they follow each other. The caller must
// close them also after an error.
func (p *peerBench) join(ctx context.Context, o peerOptions) (*peers, error) {
	c := &peers{peerBench: p}
	if available := memInfo("MemAvailable"); o.nodes*o.memoryBytes > available/3*2 {
		return c, fmt.Errorf("%d MiB of memory are free: too little", available/mib)
	}
	var err error
	if c.net, err = netns.New(o.nodes); err != nil {
		return c, err
	}
	var servers []*server
	for i := range o.nodes {
		flags, err := c.flags(ctx, i, o)
		if err != nil {
			return c, err
		}
		s, err := p.kvfs(fmt.Sprintf("peer%d", i), mebibytes(o.memoryBytes), flags...)
		if err != nil {
			return c, err
		}
		s.argv = append([]string{"nsenter", "--net=" + c.net.Path(i)}, s.argv...)
		s.adopts = false // close frees the memory of a killed one
		servers = append(servers, s)
		c.nodes = append(c.nodes, &target{name: kvfsName, dir: s.mount, server: s})
	}
	// The others find the first one.
	if err := p.start(ctx, servers[0]); err != nil {
		return c, err
	}
	begin := time.Now()
	if err := p.start(ctx, servers[1:]...); err != nil {
		return c, err
	}
	err = c.awaitEach(ctx, "the nodes follow each other", c.nodes, func(n *target) (bool, error) {
		members, err := clusterMembers(n)
		missing := slices.ContainsFunc(members, func(m member) bool { return !m.Self && m.Feed != "following" })
		return len(members) == o.nodes && !missing, err
	})
	c.joined = time.Since(begin)
	return c, err
}

// memory is the directory of the blocks of node i.
func (c *peers) memory(i int) string { return filepath.Join(c.shmDir, fmt.Sprintf("memory%d", i)) }

// flags are the flags of node i.
func (c *peers) flags(ctx context.Context, i int, o peerOptions) ([]string, error) {
	name := fmt.Sprintf("node%d", i)
	// The reader waits for a peer that gets no time on this machine: a block that it does not give
	// would be a miss.
	flags := append([]string{"--bind", net.JoinHostPort(c.net.Addr(i), gossipPort), "--node-name", name,
		"--memory-dir", c.memory(i), // the file of removals is beside it, and stays
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
		return append(flags, "--insecure"), nil
	}
	certs := filepath.Join(c.keys, "certs")
	keys := filepath.Join(c.keys, "gossip.keys")
	if c.keys == "" {
		dir, err := os.MkdirTemp("", "kvfs-bench-keys-")
		if err != nil {
			return nil, err
		}
		c.keys, certs, keys = dir, filepath.Join(dir, "certs"), filepath.Join(dir, "gossip.keys")
		if err := errors.Join(c.run(ctx, "keys", "create", keys), c.run(ctx, "certs", "init", "--dir", certs)); err != nil {
			return nil, err
		}
	}
	cert := filepath.Join(certs, name)
	if _, err := os.Stat(cert + ".pem"); err != nil {
		if err := c.run(ctx, "certs", "issue", "--dir", certs, name); err != nil {
			return nil, err
		}
	}
	return append(flags, "--peer-gossip-keys", keys, "--tls-ca", filepath.Join(certs, "ca.pem"),
		"--tls-cert", cert+".pem", "--tls-key", cert+"-key.pem"), nil
}

// run runs a kvfs command.
func (p *peerBench) run(ctx context.Context, args ...string) error {
	if p.kvfsPath == "" {
		// Any server sets kvfsPath.
		if _, err := p.kvfs("peer0", 64); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, p.kvfsPath, args...)
	cmd.Env = plainEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// close stops the daemons, a few at a time: they wait for one lock. Then it removes the network.
func (c *peers) close() error {
	errs := make([]error, len(c.nodes)+1)
	var g errgroup.Group
	g.SetLimit(4)
	for i, n := range c.nodes {
		g.Go(func() error { errs[i] = n.server.stop(); return nil })
	}
	g.Wait() // the errors are in errs
	for i := range c.nodes {
		detach(c.memory(i)) // of a killed one
	}
	if c.net != nil {
		errs[len(c.nodes)] = c.net.Close()
	}
	return errors.Join(errs...)
}

// member is the status of a member.
type member struct {
	Name        string `json:"name"`
	Self        bool   `json:"self"`
	State       string `json:"state"`
	ControlAddr string `json:"control_addr"`
	BulkAddr    string `json:"bulk_addr"`
	Feed        string `json:"feed"`
}

func clusterMembers(t *target) (list []member, err error) {
	data, err := os.ReadFile(t.dir + "/.kvfs/members")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s/.kvfs/members: %w", t.dir, err)
	}
	return list, nil
}

// await polls until done, or for too long.
func (p *peerBench) await(ctx context.Context, what string, done func() (bool, error)) error {
	for begin := time.Now(); time.Since(begin) < clusterLimit; {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	return fmt.Errorf("after %v still not: %s", clusterLimit, what)
}

// awaitEach polls one node after the other until it is done.
func (p *peerBench) awaitEach(ctx context.Context, what string, nodes []*target, done func(*target) (bool, error)) error {
	return p.await(ctx, what, func() (bool, error) {
		for ; len(nodes) > 0; nodes = nodes[1:] {
			if ok, err := done(nodes[0]); !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// known waits until a node sees the blocks of a set, which is in its own mount.
func (c *peers) known(ctx context.Context, set *blockSet) error {
	seen := 0
	return c.await(ctx, "blocks of one node are seen on another", func() (bool, error) {
		for ; seen < set.count; seen++ {
			path := unix.BytePtrToString(set.final.at(seen))
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// drop empties the memory of a node; other nodes have its blocks as well. It tries again if the
// kernel still had a file open.
func (c *peers) drop(ctx context.Context, n *target) error {
	if err := n.settle(ctx); err != nil { // A file that is still open cannot be evicted.
		return err
	}
	return c.await(ctx, "the memory of the reader is empty", func() (bool, error) {
		if err := c.run(ctx, "evict", "--tier", "memory", "--all", n.dir); err != nil {
			return false, err
		}
		s, err := readStatus(n)
		return err == nil && len(s.Tiers) > 0 && s.Tiers[0].UsedBytes == 0, err
	})
}
