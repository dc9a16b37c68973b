package harness

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The names of the daemon that the cluster's tests know are all here.

// GossipPort is the port of the gossip of every node.
const GossipPort = "7946"

// ClusterOptions say how to start daemons in namespaces. The zero value is three nodes
// without keys.
type ClusterOptions struct {
	Nodes       int           // zero means 3
	Spare       int           // additional namespaces without a node
	Secure      bool          // gossip key and certificates; else --insecure
	PeerTimeout time.Duration // zero means 2 s
	PeerSilence time.Duration // zero means that of kvfs; a peer on a busy machine is silent for longer
	Owned       bool          // each node knows a share of what the others have, so WaitQuiet does not compare numbers of blocks
	Options     Options       // of every daemon
	Flags       func(node int) []string
	Binary      func(node int) string // path of its kvfs; "" or nil: the one of all tests
}

// Cluster is daemons in one network. Each joins all other ones.
type Cluster struct {
	Net   *Net
	Nodes []*Node
	Keys  *ClusterKeys // nil unless Secure

	tb   testing.TB
	opts ClusterOptions
}

// Node is one daemon of a cluster. Its Restart functions start it in its namespace.
type Node struct {
	*Daemon
	Name  string
	Index int // in Cluster.Nodes, and of its namespace

	cluster *Cluster
}

// NodeName returns the name of the node with that index.
func NodeName(index int) string { return "node" + string(rune('a'+index)) }

// NewCluster starts daemons and waits until they follow each other.
func NewCluster(tb testing.TB, opts ClusterOptions) *Cluster {
	tb.Helper()
	KvfsOnly(tb, "no peers")
	NeedFuse(tb)
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	if opts.PeerTimeout == 0 {
		opts.PeerTimeout = 2 * time.Second
	}
	Binary(tb) // Built outside of the namespaces.
	c := &Cluster{Net: NewNet(tb, max(2, opts.Nodes+opts.Spare)), tb: tb, opts: opts}
	if opts.Secure {
		c.Keys = NewClusterKeys(tb)
	}
	for i := range opts.Nodes {
		c.Nodes = append(c.Nodes, c.start(i))
	}
	c.WaitJoined()
	return c
}

func (c *Cluster) start(i int) *Node {
	c.tb.Helper()
	n := &Node{Name: NodeName(i), Index: i, cluster: c}
	n.in(func() { n.Daemon = Mount(c.tb, c.Options(i)) })
	return n
}

// Options returns the options of the daemon of a node.
func (c *Cluster) Options(i int) Options {
	c.tb.Helper()
	o := c.opts.Options
	if o.MemorySize == "" {
		o.MemorySize = "96MiB"
	}
	o.Flags = append(c.JoinFlags(i), o.Flags...)
	if c.opts.Flags != nil {
		o.Flags = append(o.Flags, c.opts.Flags(i)...)
	}
	return o
}

// JoinFlags returns the flags that make the daemon in a namespace a member.
func (c *Cluster) JoinFlags(i int) []string {
	c.tb.Helper()
	var join []string
	for j := range c.opts.Nodes {
		if j != i {
			join = append(join, net.JoinHostPort(c.Net.Addr(j), GossipPort))
		}
	}
	flags := []string{
		"--bind", net.JoinHostPort(c.Net.Addr(i), GossipPort), "--node-name", NodeName(i),
		"--join", strings.Join(join, ","), "--peer-gossip-profile", "local",
		"--peer-timeout", c.opts.PeerTimeout.String(),
	}
	if c.opts.PeerSilence > 0 {
		flags = append(flags, "--peer-silence", c.opts.PeerSilence.String())
	}
	if c.Keys == nil {
		return append(flags, "--insecure")
	}
	return append(flags, c.Keys.Flags(NodeName(i))...)
}

// PeerTimeout returns --peer-timeout.
func (c *Cluster) PeerTimeout() time.Duration { return c.opts.PeerTimeout }

// Restart is Daemon.Restart in the node's namespace.
func (n *Node) Restart() {
	n.tb.Helper()
	n.in(func() { n.Daemon.Restart() })
}

// RestartWith is Daemon.RestartWith in the node's namespace.
func (n *Node) RestartWith(opts Options) {
	n.tb.Helper()
	n.in(func() { n.Daemon.RestartWith(opts) })
}

// in calls fn, which starts the node's daemon, in its namespace and with its binary.
func (n *Node) in(fn func()) {
	c := n.cluster
	c.tb.Helper()
	if c.opts.Binary != nil {
		if path := c.opts.Binary(n.Index); path != "" {
			all := Binary(c.tb)
			binary.path = path // Only daemons of this test start meanwhile.
			defer func() { binary.path = all }()
		}
	}
	c.Net.In(n.Index, fn)
}

// Abort ends the kernel's connection to the node's daemon, in any state of the daemon. All calls that hang in the
// mount then fail.
func (n *Node) Abort() {
	err := unix.Unmount(n.Dir, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EBUSY) { // Busy, but aborted.
		n.tb.Errorf("abort %s: %v", n.Name, err)
	}
}

// ClusterKeys are a gossip key and certificates, made with kvfs keys and kvfs certs.
type ClusterKeys struct {
	Dir    string // the CA and the certificates
	Gossip string // file of the gossip keys

	tb testing.TB
}

// NewClusterKeys makes a gossip key and a CA that the test removes.
func NewClusterKeys(tb testing.TB) *ClusterKeys {
	tb.Helper()
	dir := newDir(tb, processDir(), "keys")
	k := &ClusterKeys{Dir: filepath.Join(dir, "certs"), Gossip: filepath.Join(dir, "gossip.keys"), tb: tb}
	k.kvfs("keys", "create", k.Gossip)
	k.kvfs("certs", "init", "--dir", k.Dir)
	return k
}

func (k *ClusterKeys) kvfs(args ...string) {
	k.tb.Helper()
	if out, errs, code := Kvfs(k.tb, args...); code != 0 {
		k.tb.Fatalf("kvfs %q: exit code %d\n%s%s", args, code, out, errs)
	}
}

// Flags returns the flags of a node. It makes the node's certificate if there is none.
func (k *ClusterKeys) Flags(name string) []string {
	k.tb.Helper()
	cert, key := k.Files(name)
	if _, err := os.Stat(cert); errors.Is(err, os.ErrNotExist) {
		k.kvfs("certs", "issue", "--dir", k.Dir, name)
	}
	return []string{"--peer-gossip-keys", k.Gossip, "--tls-ca", k.CA(), "--tls-cert", cert, "--tls-key", key}
}

// CA returns the path of the CA's certificate.
func (k *ClusterKeys) CA() string { return filepath.Join(k.Dir, "ca.pem") }

// Files returns the paths of a node's certificate and key.
func (k *ClusterKeys) Files(name string) (cert, key string) {
	return filepath.Join(k.Dir, name+".pem"), filepath.Join(k.Dir, name+"-key.pem")
}
