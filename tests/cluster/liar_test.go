package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tests/harness"
	blocks "github.com/kvfs/kvfs/tiers/block"
)

const (
	liarHelper = "lying-peer"
	regular    = 0o100644
)

// The ways to lie.
const (
	lieBytes = "wrong bytes"      // other bytes than the checksum says
	lieGone  = "has nothing"      // announced, but not there
	lieBusy  = "is busy"          // for ever
	lieSize  = "another size"     // than announced
	lieHang  = "answers too late" // the holder's own code never ends
)

// TestLiars shows for each way to lie what a reader gets (TestBadHolders of rdma/tcp has lies on the wire): the right bytes of an honest
// holder if there is one, else no such file, in time. What the liar claims to hold is
// the very version that the honest node has.
func TestLiars(t *testing.T) {
	for _, lie := range []string{lieBytes, lieGone, lieBusy, lieSize, lieHang} {
		t.Run(lie, func(t *testing.T) {
			// Half of the time is for the honest one.
			w := newWorld(t, harness.ClusterOptions{Spare: 1, PeerTimeout: 6 * time.Second})
			a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
			shared, alone := block("shared"), block("alone")
			version := w.mustWrite(a, shared, mib)
			w.mustWrite(b, alone, mib)
			w.WaitQuiet()
			l := w.startLiar(3, lie, shared, alone)
			b.Stop() // The liar is now the only one with the other block.
			c.WaitState(b, "left")
			for _, n := range []*harness.Node{a, c} {
				for range 3 {
					if got := w.mustRead(n, shared); got != version {
						t.Errorf("%s reads version %d, want %d of %s", n.Name, got, version, a.Name)
					}
				}
			}
			if got := w.mustRead(c, alone); got != 0 {
				t.Errorf("%s reads version %d of what only a liar has", c.Name, got)
			}
			if m := c.Member(l.name); m.State != "alive" {
				t.Errorf("the liar is %q: the test shows nothing", m.State)
			}
			l.process.Kill()
			b.Restart()
			w.WaitJoined()
			w.wantEverywhere(shared, version)
		})
	}
}

type liarProcess struct {
	name    string
	process *harness.Process
}

// startLiar starts a lying peer in a namespace and waits until the others believe that
// it holds the names.
func (w *world) startLiar(node int, lie string, names ...string) liarProcess {
	w.t.Helper()
	l := liarProcess{name: harness.NodeName(node)}
	join := net.JoinHostPort(w.Net.Addr(0), harness.GossipPort)
	w.Net.In(node, func() {
		args := append([]string{l.name, w.Net.Addr(node), join, lie}, names...)
		l.process = harness.StartHelper(w.t, harness.ProcessOptions{}, liarHelper, args...)
	})
	late := time.AfterFunc(harness.Deadline, func() { unix.Kill(l.process.Pid, unix.SIGKILL) })
	defer late.Stop()
	line := make([]byte, 64)
	n, err := l.process.Stdout.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), "ready") {
		l.process.Kill()
		w.t.Fatalf("lying peer: %q, %v\n%s", line[:n], err, l.process.Stderr())
	}
	for _, n := range w.Nodes {
		harness.Poll(w.t, n.Name+" believes the liar", func() bool {
			m := n.Member(l.name)
			return m.State == "alive" && m.Feed == "following" && m.Blocks >= int64(len(names))
		})
	}
	return l
}

// liar is a peer made of the packages of real ones.
type liar struct {
	lie  string
	node *cluster.Node

	mu struct {
		sync.Mutex
		holds map[string]feed.Record // what it claims to hold, by path
	}
}

// lyingPeer is the helper: name, IP address, address to join, lie, paths.
func lyingPeer(args []string) int {
	if err := runLiar(args[0], args[1], args[2], args[3], args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "lying peer:", err)
		return 1
	}
	return 0
}

func runLiar(name, addr, join, lie string, paths []string) error {
	l := &liar{lie: lie}
	l.mu.holds = map[string]feed.Record{}
	bulk, err := tcp.Open(tcp.Options{Bind: addr + ":0"})
	if err != nil {
		return err
	}
	l.node, err = cluster.Open(context.Background(), cluster.Options{
		Gossip:    gossip.Options{Name: name, Bind: net.JoinHostPort(addr, harness.GossipPort), Join: []string{join}, Profile: "local"},
		Insecure:  true,
		Transport: bulk,
		Capacity:  func() (total, free int64) { return 1 << 30, 1 << 30 },
		Version:   "liar",
	})
	if err != nil {
		return err
	}
	bulk.SetSource(l.node)
	if err := l.node.Start(l); err != nil {
		return err
	}
	for _, path := range paths {
		l.claim(path)
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin) // Until the test ends.
	return err
}

// claim waits until a node holds the path and then claims to hold the same version.
func (l *liar) claim(path string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range tick.C { // Ends with the process, which the test ends.
		found := l.node.Locate(path, nil)
		if len(found) == 0 {
			continue
		}
		e := found[0].Entry
		r := feed.Record{
			Op: feed.Hold, Hash: location.HashPath(path), Seq: e.Seq, Size: e.Size, Mode: regular, UID: e.UID, GID: e.GID, Memory: true,
		}
		l.mu.Lock()
		l.mu.holds[path] = r
		l.mu.Unlock()
		l.node.Append(r)
		return
	}
}

// Snapshot implements cluster.Backend.
func (l *liar) Snapshot(_ context.Context, fn func(r *feed.Record) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.holds {
		if err := fn(&r); err != nil {
			return err
		}
	}
	return nil
}

// Lend implements cluster.Backend. What it lends are zeros with the checksum of
// something else.
func (l *liar) Lend(ctx context.Context, b *cluster.BlockRef) (cluster.BlockInfo, rdma.Loan, error) {
	l.mu.Lock()
	r, ok := l.mu.holds[b.Path]
	l.mu.Unlock()
	switch {
	case !ok || l.lie == lieGone:
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrGone
	case l.lie == lieBusy:
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrBusy
	case l.lie == lieHang:
		<-ctx.Done()
		return cluster.BlockInfo{}, rdma.Loan{}, ctx.Err()
	}
	size := r.Size
	if l.lie == lieSize {
		size += 4096
	}
	f, err := os.CreateTemp("", "liar")
	if err == nil {
		err = errors.Join(os.Remove(f.Name()), f.Truncate(size))
	}
	if err != nil {
		return cluster.BlockInfo{}, rdma.Loan{}, err
	}
	sum := blocks.Sum([]byte("something else"))
	if l.lie == lieSize {
		sum = blocks.Sum(make([]byte, size)) // Right for what is sent.
	}
	info := cluster.BlockInfo{Path: b.Path, Seq: r.Seq, Size: size, Sum: sum, Mode: r.Mode}
	return info, rdma.Loan{File: f, Size: size, Close: func() { f.Close() }}, nil
}

// List implements cluster.Backend.
func (l *liar) List(context.Context, string, string, int) ([]cluster.Name, bool, error) {
	return []cluster.Name{{Name: "../escape"}, {Name: "a/b"}, {Name: ""}, {Name: "."}, {Name: ".."}, {Name: strings.Repeat("x", 300)}}, false, nil
}

// Stat implements cluster.Backend.
func (l *liar) Stat(paths []string) []*cluster.BlockInfo {
	return make([]*cluster.BlockInfo, len(paths))
}

// Store implements cluster.Backend.
func (l *liar) Store(_ context.Context, _ *cluster.Peer, offers []cluster.BlockInfo) []cluster.StoreOutcome {
	out := make([]cluster.StoreOutcome, len(offers))
	for i := range out {
		out[i].Status = cluster.StoreDone // It has nothing.
	}
	return out
}

// Bury implements cluster.Backend.
func (l *liar) Bury(string, bool, uint64) {}

// Observe implements cluster.Backend.
func (l *liar) Observe(uint64, string) {}
func (l *liar) Followed()              {}
