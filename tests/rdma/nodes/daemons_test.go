package nodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/tests/harness"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

const gossipPort = "7946"

// peerTimeout is --peer-timeout; slack is what an operation may take beyond it, on an
// emulated processor.
const (
	peerTimeout = 20 * time.Second
	slack       = 20 * time.Second
)

// member is what a node knows of another one: of .kvfs/members.
type member struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Feed       string `json:"feed"`
	Path       string `json:"path"`
	PathReason string `json:"path_reason"`
	LastError  string `json:"last_error"`
}

// node is a daemon with RDMA.
type node struct {
	*harness.Daemon
	t    *testing.T
	name string
	in   func(fn func()) // calls fn where the daemon is to be started
}

// pair starts two daemons that reach each other's memory.
func pair(t *testing.T) (a, b *node) {
	t.Helper()
	openFabric(t).Close() // or the test is skipped: the daemons cannot, either
	addrs, in := places(t)
	name, devices := provider("eth0")
	var nodes []*node
	for i := range addrs {
		n := &node{t: t, name: fmt.Sprintf("node%c", 'a'+i), in: in[i]}
		o := harness.Options{MemorySize: "192MiB", Flags: []string{
			"--node-name", n.name, "--bind", net.JoinHostPort(addrs[i], gossipPort),
			"--join", net.JoinHostPort(addrs[1-i], gossipPort), "--insecure",
			"--peer-gossip-profile", "local", "--peer-timeout", peerTimeout.String(), "--peer-silence", (peerTimeout / 4).String(), // 16 MiB take seconds there
			"--peer-transport", "rdma", "--rdma-provider", name, "--rdma-devices", strings.Join(devices, ","),
		}}
		n.in(func() { n.Daemon = harness.Mount(t, o) })
		nodes = append(nodes, n)
	}
	a, b = nodes[0], nodes[1]
	meet(a, b)
	for _, n := range nodes {
		if err := os.MkdirAll(n.Path("kv"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// places returns the addresses of two nodes and what calls a function there: in namespaces of
// their own, but in the virtual machine, whose RDMA device serves only one.
func places(t *testing.T) (addrs [2]string, in [2]func(func())) {
	t.Helper()
	if inMachine() {
		list := strings.Split(os.Getenv("KVFS_TEST_FABRIC_ADDRESSES"), ",")
		if len(list) != 2 {
			t.Fatalf("KVFS_TEST_FABRIC_ADDRESSES: %q, want two", list)
		}
		for i := range addrs {
			addrs[i], in[i] = list[i], func(fn func()) { fn() }
		}
		return addrs, in
	}
	n := harness.NewNet(t, 2)
	for i := range addrs {
		addrs[i], in[i] = n.Addr(i), func(fn func()) { n.In(i, fn) }
	}
	return addrs, in
}

// meet waits until two nodes would read from each other by RDMA.
func meet(a, b *node) {
	a.t.Helper()
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		n, other := pair[0], pair[1]
		var m member
		harness.Poll(a.t, n.name+" reaches the memory of "+other.name, func() bool {
			m = n.member(other.name)
			return m.State == "alive" && m.Feed == "following" && m.Path == "rdma"
		})
	}
}

// member returns what n knows of the one with that name.
func (n *node) member(name string) member {
	n.t.Helper()
	var doc struct {
		Cluster struct{ Members []member } `json:"cluster"`
	}
	n.status(&doc)
	for _, m := range doc.Cluster.Members {
		if m.Name == name {
			return m
		}
	}
	return member{}
}

// fabric returns what n counts of its RDMA.
func (n *node) fabric() fabric.Stats {
	n.t.Helper()
	var doc struct {
		Cluster struct {
			RDMA struct {
				Provider, Error string
				Stats           *fabric.Stats
			} `json:"rdma"`
		} `json:"cluster"`
	}
	n.status(&doc)
	if r := doc.Cluster.RDMA; r.Stats == nil || r.Error != "" {
		n.t.Fatalf("%s has no RDMA: %+v", n.name, r)
	}
	return *doc.Cluster.RDMA.Stats
}

func (n *node) status(doc any) {
	n.t.Helper()
	b, err := os.ReadFile(n.Path(".kvfs", "status"))
	if err == nil {
		err = json.Unmarshal(b, doc)
	}
	if err != nil {
		n.t.Fatalf("status of %s: %v\n%s", n.name, err, b)
	}
}

// pattern returns the bytes that a seed makes.
func pattern(seed uint64, size int) []byte {
	b := make([]byte, size)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return b
}

// write commits the block of a seed.
func (n *node) write(seed uint64, size int) string {
	n.t.Helper()
	name := fmt.Sprintf("kv/%d-%d", seed, size)
	if err := os.WriteFile(n.Path(name), pattern(seed, size), 0o644); err != nil {
		n.t.Fatalf("write on %s: %v", n.name, err)
	}
	return name
}

// knows waits until a node sees a block of the other.
func (n *node) knows(name string) {
	n.t.Helper()
	harness.Poll(n.t, n.name+" knows "+name, func() bool {
		_, err := os.Stat(n.Path(name))
		return err == nil
	})
}

// read reads a block, and complains if other bytes come, or an error that is none of a peer
// that is gone, or if it takes too long.
func (n *node) read(name string, seed uint64, size int) error {
	begin := time.Now()
	b, err := os.ReadFile(n.Path(name))
	if took := time.Since(begin); took > peerTimeout+slack {
		n.t.Errorf("read of %s on %s: took %v", name, n.name, took)
	}
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EIO):
	case err != nil:
		n.t.Errorf("read of %s on %s: %v", name, n.name, err)
	case !bytes.Equal(b, pattern(seed, size)):
		n.t.Errorf("read of %s on %s: wrong bytes", name, n.name)
	}
	return err
}

// wants reads a block that is there, as soon as the peer's is not avoided any more.
func (n *node) wants(name string, seed uint64, size int) {
	n.t.Helper()
	harness.Poll(n.t, n.name+" reads "+name, func() bool { return n.read(name, seed, size) == nil })
}

// TestRead shows that blocks of one node are read on the other, byte for byte, by RDMA and
// nothing else.
func TestRead(t *testing.T) {
	a, b := pair(t)
	seed := uint64(100)
	for _, n := range [][2]*node{{a, b}, {b, a}} {
		before, sum := n[1].fabric().ReadBytes, int64(0)
		for _, size := range []int{1, 4*kib - 1, 64 * kib, mib, 9*mib + 5} {
			seed++
			name := n[0].write(seed, size)
			n[1].knows(name)
			begun := time.Now()
			n[1].wants(name, seed, size)
			took := time.Since(begun) // in software on an emulated machine: nothing is to be read from it but that it works
			t.Logf("%d bytes from %s, read and checked on %s: %v, %.3f MB/s", size, n[0].name, n[1].name, took, float64(size)/took.Seconds()/1e6)
			sum += int64(size)
		}
		if got := n[1].fabric(); got.ReadBytes-before < sum {
			t.Errorf("%s has read %d bytes by RDMA, blocks of %d: %+v", n[1].name, got.ReadBytes-before, sum, got)
		}
	}
}

// TestKilled shows that reads of a node that is killed in the middle of them end: with all of
// the block, or without; and that the node, started again, is read from again.
func TestKilled(t *testing.T) {
	const size, blocks, rounds = 16 * mib, 3, 8
	a, b := pair(t)
	cut := 0 // rounds in which the kill came before the end of a read
	for round := uint64(0); cut < 2; round++ {
		if round == rounds {
			t.Fatalf("in %d of %d rounds a read was cut off, want 2", cut, rounds)
		}
		var names []string
		for i := range uint64(blocks) {
			names = append(names, a.write(200+round*blocks+i, size))
		}
		for _, name := range names {
			b.knows(name)
		}
		before := b.fabric().ReadBytes
		results := make(chan error, blocks)
		for i, name := range names {
			go func() { results <- b.read(name, 200+round*blocks+uint64(i), size) }() // ends by its deadline
		}
		harness.Poll(t, "reads are under way", func() bool { return b.fabric().ReadBytes > before })
		a.Kill()
		missed := 0
		for range names {
			select {
			case err := <-results:
				t.Logf("round %d: the read ended with %v", round, err)
				if err != nil {
					missed++
				}
			case <-time.After(harness.Deadline + peerTimeout):
				t.Fatal("a read hangs after the holder was killed")
			}
		}
		if missed > 0 || !inMachine() { // without a machine the reads are too fast
			cut++
		}
		b.alone(300+round, size)
		a.in(a.Restart)
		meet(a, b)
		name := a.write(400+round, mib)
		b.knows(name)
		b.wants(name, 400+round, mib)
		for i, name := range names { // of before: gone, or right
			b.read(name, 200+round*blocks+uint64(i), size)
		}
	}
}

// alone shows that a node serves its own blocks.
func (n *node) alone(seed uint64, size int) {
	n.t.Helper()
	name := n.write(seed, size)
	if err := n.read(name, seed, size); err != nil {
		n.t.Errorf("%s, with the peer dead: %v", n.name, err)
	}
	if err := os.Remove(n.Path(name)); err != nil {
		n.t.Error(err)
	}
}
