package cluster

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestLookupNoPacket shows that look-ups of 10,000 names that other nodes have, and of as many that no node has, send
// nothing. The test counts the packets of all control and bulk channels. The nodes exchange other messages now and
// then, so a few packets are allowed, far fewer than one for a hundred look-ups.
func TestLookupNoPacket(t *testing.T) {
	const present, absent = 10_000, 10_000
	w := newWorld(t, harness.ClusterOptions{Options: harness.Options{MemorySize: "256MiB"}, PeerTimeout: patient})
	for i := range present {
		w.writeSmall(w.Nodes[i%2], i)
	}
	w.WaitQuiet()
	reader := w.Nodes[2]
	w.countPeers(2)
	tcp, udp := w.Net.Counted(2)
	begin := time.Now()
	for i := range present {
		if _, err := os.Lstat(reader.Path(smallName(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range absent {
		if _, err := os.Lstat(reader.Path(smallName(present + i))); !errors.Is(err, unix.ENOENT) {
			t.Fatalf("absent name: got %v, want ENOENT", err)
		}
	}
	took := time.Since(begin)
	tcpAfter, udpAfter := w.Net.Counted(2)
	t.Logf("%d look-ups in %v: %d packets of control and bulk, %d of gossip", present+absent, took, tcpAfter-tcp, udpAfter-udp)
	// Pings and gossip go on with time, not with look-ups: ten packets for each tick of 100 ms.
	most := (present+absent)/100 + uint64(took/(10*time.Millisecond))
	if got := tcpAfter - tcp; got > most {
		t.Errorf("%d packets on the control and bulk channels, want %d or less", got, most)
	}
	if got := udpAfter - udp; got > most {
		t.Errorf("%d packets of gossip, want %d or less", got, most)
	}
	// What is counted is what would be sent: a read of one of them is seen.
	tcp, _ = w.Net.Counted(2)
	if _, err := os.ReadFile(reader.Path(smallName(0))); err != nil {
		t.Fatal(err)
	}
	if after, _ := w.Net.Counted(2); after == tcp {
		t.Error("a read from a peer was not counted")
	}
}

func smallName(i int) string { return block("small-%05d", i) }

func (w *world) writeSmall(n *harness.Node, i int) {
	w.t.Helper()
	if err := os.WriteFile(n.Path(smallName(i)), []byte(smallName(i)), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// countPeers has a node count packets of all control and bulk channels.
func (w *world) countPeers(node int) {
	w.t.Helper()
	for _, m := range w.Nodes[node].Members() {
		for _, addr := range []string{m.ControlAddr, m.BulkAddr} {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				w.t.Fatalf("address of %s: %v", m.Name, err)
			}
			w.Net.Count(node, port)
		}
	}
}
