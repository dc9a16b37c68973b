package netns

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is for packets that arrive; silence for those that must not. If a test waits too short
// for the latter, it may pass although it should fail, never the reverse.
const (
	patience = 30 * time.Second
	silence  = 100 * time.Millisecond
)

func newNet(t *testing.T, nodes int) *Net {
	t.Helper()
	if why := Lacks(); why != "" {
		t.Skip(why)
	}
	n, err := New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, n.Close()) })
	return n
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen returns a UDP socket in a node's namespace.
func listen(t *testing.T, n *Net, i int) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	check(t, n.Do(i, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(n.Addr(i)), Port: 4000})
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// datagrams numbers the datagrams of reaches, so that a late one is not taken for a later one.
var datagrams int

// reaches sends a datagram, and more while none arrives, and reports whether one arrives. A single
// one may get lost: the kernel handles a link that is up again, and addresses that it must ask for,
// some time after the command has ended.
func reaches(t *testing.T, from, to *net.UDPConn, wait time.Duration) bool {
	t.Helper()
	first := datagrams + 1
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
		datagrams++
		from.WriteTo([]byte(strconv.Itoa(datagrams)), to.LocalAddr()) // fails if the network is down: no arrival
		if arrives(t, to, first, silence) {
			return true
		}
	}
	return false
}

// arrives waits for a datagram with the number first or a later one.
func arrives(t *testing.T, to *net.UDPConn, first int, wait time.Duration) bool {
	t.Helper()
	to.SetReadDeadline(time.Now().Add(wait))
	for {
		buf := make([]byte, 16)
		n, err := to.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		check(t, err)
		number, err := strconv.Atoi(string(buf[:n]))
		check(t, err)
		if number >= first {
			return true
		}
	}
}

// TestNetwork shows for a pair and for a bridge that packets pass, that partitions in one and in
// both directions, isolation and a link that is down stop the right packets and no others, and that
// all of it can be undone.
func TestNetwork(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		t.Run(strconv.Itoa(nodes)+" nodes", func(t *testing.T) {
			n := newNet(t, nodes)
			var socks []*net.UDPConn
			for i := range nodes {
				socks = append(socks, listen(t, n, i))
			}
			expect := func(what string, from, to int, want bool) {
				t.Helper()
				wait := silence
				if want {
					wait = patience
				}
				if got := reaches(t, socks[from], socks[to], wait); got != want {
					t.Errorf("%s: %d reaches %d: got %v, want %v", what, from, to, got, want)
				}
			}
			expect("whole", 0, 1, true)
			expect("whole", 1, 0, true)
			check(t, n.PartitionOneWay(0, 1))
			expect("one way", 0, 1, false)
			expect("one way", 1, 0, true)
			check(t, n.Partition(0, 1))
			expect("both ways", 0, 1, false)
			expect("both ways", 1, 0, false)
			if nodes > 2 {
				expect("others", 0, 2, true)
				check(t, n.Isolate(0))
				expect("isolated", 0, 2, false)
				expect("isolated", 1, 2, true)
			}
			check(t, n.Heal())
			expect("healed", 0, 1, true)
			check(t, n.LinkDown(0))
			expect("link down", 1, 0, false)
			check(t, n.LinkUp(0))
			expect("link up", 1, 0, true)
		})
	}
}

// TestManyNodes shows that the nodes of a large network know each other's hardware addresses, so that these do not fill the kernel's table.
func TestManyNodes(t *testing.T) {
	n := newNet(t, maxARP+1)
	if a, b := listen(t, n, 0), listen(t, n, maxARP); !reaches(t, a, b, patience) || !reaches(t, b, a, patience) {
		t.Error("a datagram does not arrive")
	}
	out, err := n.Run(0, "ip", "neigh", "show", "nud", "permanent")
	check(t, err)
	if got := strings.Count(out, "PERMANENT"); got != maxARP {
		t.Errorf("got %d known addresses, want %d:\n%s", got, maxARP, out)
	}
}

// TestCount shows that TCP packets are counted only on the requested ports, and UDP on all.
func TestCount(t *testing.T) {
	n := newNet(t, 2)
	var l [2]net.Listener
	for k := range l {
		check(t, n.Do(0, func() (err error) {
			l[k], err = net.Listen("tcp4", n.Addr(0)+":0")
			return err
		}))
		defer l[k].Close()
	}
	_, port, err := net.SplitHostPort(l[0].Addr().String())
	check(t, err)
	check(t, n.Count(0, port))
	connect := func(to net.Listener) {
		t.Helper()
		check(t, n.Do(1, func() error {
			c, err := net.DialTimeout("tcp4", to.Addr().String(), patience)
			if err == nil {
				c.Close()
			}
			return err
		}))
	}
	connect(l[1])
	tcp, udp, err := n.Counted(0)
	check(t, err)
	if tcp != 0 || udp != 0 {
		t.Errorf("another port: got %d TCP and %d UDP packets, want none", tcp, udp)
	}
	connect(l[0])
	a, b := listen(t, n, 0), listen(t, n, 1)
	if !reaches(t, b, a, patience) {
		t.Fatal("no datagram")
	}
	// The client goes on while the last packets are still in transit.
	for deadline := time.Now().Add(patience); ; {
		tcp, udp, err = n.Counted(0)
		check(t, err)
		if tcp >= 3 && udp >= 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %d TCP and %d UDP packets, want 3 or more and 1 or more", tcp, udp)
		}
	}
	traffic, err := n.Traffic(0)
	check(t, err)
	if traffic.ReceivedPackets < 4 || traffic.SentBytes == 0 {
		t.Errorf("traffic: got %+v", traffic)
	}
}

// TestSweep shows that the networks of a dead process are removed, and that those of living ones
// stay.
func TestSweep(t *testing.T) {
	n := newNet(t, 2)
	// No process has this number, or will have it a moment later.
	name := prefix + strconv.Itoa(1<<30+os.Getpid()) + "-1-0"
	check(t, ip("netns", "add", name))
	check(t, Sweep())
	list, err := exec.Command("ip", "netns", "list").Output()
	check(t, err)
	if bytes.Contains(list, []byte(name)) {
		t.Errorf("%s is still there", name)
	}
	if !bytes.Contains(list, []byte(n.Name(1))) {
		t.Errorf("%s is gone", n.Name(1))
	}
}
