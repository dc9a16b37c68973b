package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestStrangerBytes sends what no node would send to all addresses of one: garbage,
// frames that claim to be huge, connections that say nothing, and handshakes with
// certificates that are expired or of another CA. All that is for nothing, and counted.
func TestStrangerBytes(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Secure: true, Spare: 1})
	a, b := w.Nodes[0], w.Nodes[1]
	name := block("quiet")
	version := w.mustWrite(a, name, 500_000)
	w.WaitQuiet()
	before := a.Rejected()
	self := a.Members()[0]
	w.Net.In(3, func() {
		floodDatagrams(t, self.GossipAddr)
		for _, addr := range []string{self.GossipAddr, self.ControlAddr, self.BulkAddr} {
			for _, p := range garbage() {
				poke(t, addr, p)
			}
		}
	})
	harness.Poll(t, "the garbage is counted", func() bool { return a.Rejected() > before })
	before = a.Rejected()
	strangers(t, w, self)
	harness.Poll(t, "the handshakes are counted", func() bool { return a.Rejected() > before })
	var silent []net.Conn
	w.Net.In(3, func() {
		for range 100 {
			for _, addr := range []string{self.GossipAddr, self.ControlAddr, self.BulkAddr} {
				if c, err := net.DialTimeout("tcp", addr, harness.Deadline); err == nil {
					silent = append(silent, c)
				}
			}
		}
	})
	w.wantVersion(b, name, version)
	b.Restart()
	w.WaitJoined() // Past all the connections that say nothing.
	for _, c := range silent {
		c.Close()
	}
	for _, n := range w.Nodes {
		if got := len(n.Members()); got != 3 {
			t.Errorf("%s has %d members: %+v", n.Name, got, n.Members())
		}
	}
	w.agree()
}

// TestStrangerFlood opens thousands of connections that say nothing to all ports of a node that may open few files. Its
// own files can be opened all the time, and peers reach it.
func TestStrangerFlood(t *testing.T) {
	const limit, flood = 1200, 1500 // the daemon wants 1,024 at least
	script := filepath.Join(t.TempDir(), "kvfs")
	text := fmt.Sprintf("#!/bin/sh\nulimit -n %d && exec %s \"$@\"\n", limit, harness.Binary(t))
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, harness.ClusterOptions{Nodes: 2, Spare: 1, Binary: func(int) string { return script }})
	a, b := w.Nodes[0], w.Nodes[1]
	self := a.Members()[0]
	var silent []net.Conn
	t.Cleanup(func() {
		for _, c := range silent {
			c.Close()
		}
	})
	for i := range flood / 50 {
		w.Net.In(2, func() {
			for range 50 {
				for _, addr := range []string{self.GossipAddr, self.ControlAddr, self.BulkAddr} {
					if c, err := net.DialTimeout("tcp", addr, harness.Deadline); err == nil {
						silent = append(silent, c)
					}
				}
			}
		})
		for j := range 10 {
			w.mustWrite(a, block("flood-%d-%d", i%8, j), 4*kib)
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d files are open after %d connections", len(open), limit, len(silent))
	if len(open) > limit*2/3 {
		t.Errorf("%d of %d files are open", len(open), limit)
	}
	w.wantVersion(b, block("after"), w.mustWrite(a, block("after"), 500_000))
}

// garbage is what is written to a connection.
func garbage() [][]byte {
	random := make([]byte, 64*kib)
	rand.Read(random)
	huge := bytes.Repeat([]byte{0xff}, 64)
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x04\x00\x00\x00\x00\x00")
	hello := append([]byte{22, 3, 1, 0xff, 0xff}, random[:1000]...) // A TLS record that is too long.
	return [][]byte{nil, random, huge, preface, hello, []byte("GET / HTTP/1.1\r\nHost: kvfs\r\n\r\n")}
}

// poke writes p to a connection and waits until the other side has had enough, or for
// a moment.
func poke(t *testing.T, addr string, p []byte) {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, harness.Deadline)
	if err != nil {
		t.Fatalf("connect to %s: %v", addr, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := c.Write(p); err == nil {
		io.Copy(io.Discard, io.LimitReader(c, mib)) // Fails when the node ends the connection, as it should.
	}
}

func floodDatagrams(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 500 {
		p := make([]byte, 1+i*2)
		rand.Read(p)
		p[0] = byte(i) // Every type of message, in plain text.
		c.Write(p)     // Fails if the node's socket is full, which is well.
	}
}

// strangers shakes hands with an expired certificate, with one of another CA and with
// none at all, at the channels that TLS guards. A client learns of a refusal when it
// reads.
func strangers(t *testing.T, w *world, self harness.Member) {
	t.Helper()
	dir := t.TempDir()
	issueExpired(t, w.Keys, "noded", dir+"/cert.pem", dir+"/key.pem")
	others := harness.NewClusterKeys(t)
	others.Flags("noded")
	foreign, foreignKey := others.Files("noded")
	for _, files := range [][2]string{{dir + "/cert.pem", dir + "/key.pem"}, {foreign, foreignKey}, {}} {
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
		if files[0] != "" {
			pair, err := tls.LoadX509KeyPair(files[0], files[1])
			if err != nil {
				t.Fatal(err)
			}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		for _, addr := range []string{self.ControlAddr, self.BulkAddr} {
			w.Net.In(3, func() {
				c, err := net.DialTimeout("tcp", addr, harness.Deadline)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(harness.Deadline))
				client := tls.Client(c, config)
				if err = client.HandshakeContext(t.Context()); err == nil {
					_, err = client.Read(make([]byte, 1))
				}
				if err == nil {
					t.Errorf("%s answered a client with certificate %q", addr, files[0])
				}
			})
		}
	}
}

// servedSerial returns the serial number of the certificate that a node shows.
func servedSerial(t *testing.T, w *world, n *harness.Node) string {
	t.Helper()
	var serial string
	w.Net.In(n.Index, func() {
		d := &net.Dialer{Timeout: harness.Deadline}
		c, err := d.DialContext(t.Context(), "tcp", n.Members()[0].ControlAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err := client.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		serial = client.ConnectionState().PeerCertificates[0].SerialNumber.String()
	})
	return serial
}

// issueExpired makes a certificate of the cluster's CA that was valid until yesterday.
func issueExpired(t *testing.T, keys *harness.ClusterKeys, name, certFile, keyFile string) {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(keys.CA(), keys.CAKey())
	if err != nil {
		t.Fatal(err)
	}
	parent, err := x509.ParseCertificate(ca.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".kvfs", name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, p := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReplay records the gossip of a cluster while a node fails and comes back, and
// sends all of it again from another address. No node is declared dead, nothing that was
// removed comes back.
func TestReplay(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Secure: true, Spare: 1})
	a, c := w.Nodes[0], w.Nodes[2]
	name := block("replay")
	w.wantEverywhere(name, w.mustWrite(c, name, 10_000))
	record := w.record(0)
	w.remove(c, name)
	w.wantEverywhere(name, 0)
	c.Kill()
	a.WaitState(c, "failed")
	c.Restart()
	w.WaitJoined()
	datagrams := record()
	if len(datagrams) == 0 {
		t.Fatal("no gossip was recorded")
	}
	w.WaitQuiet()
	states := map[string]int{}
	for range 3 {
		w.Net.In(3, func() {
			for _, n := range w.Nodes {
				to, err := net.Dial("udp", n.Members()[0].GossipAddr)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range datagrams {
					to.Write(p)
				}
				to.Close()
			}
		})
		for _, n := range w.Nodes {
			for _, m := range n.Members() {
				states[m.State]++
			}
		}
	}
	if len(states) != 1 || states["alive"] == 0 {
		t.Errorf("states after %d replayed datagrams: %v", len(datagrams), states)
	}
	w.WaitJoined()
	w.wantEverywhere(name, 0)
	w.agree()
}

// record collects the gossip datagrams that a node receives until the function that it
// returns is called.
func (w *world) record(node int) (stop func() [][]byte) {
	t := w.t
	t.Helper()
	const allProtocols = 0x0300 // ETH_P_ALL in network order
	fd := -1
	w.Net.In(node, func() {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, allProtocols); err != nil {
			t.Fatal(err)
		}
	})
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		t.Fatal(err)
	}
	stopped, done := make(chan struct{}), make(chan [][]byte)
	go func() { // Ends with stop, or with the test.
		defer close(done)
		defer unix.Close(fd)
		var out [][]byte
		buf := make([]byte, 64*kib)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if p := gossipPayload(buf[:max(n, 0)]); err == nil && p != nil && len(out) < 20_000 {
				out = append(out, bytes.Clone(p))
			}
			select {
			case <-stopped:
				done <- out
				return
			case <-t.Context().Done():
				return
			default:
			}
		}
	}()
	return func() [][]byte { close(stopped); return <-done }
}

// gossipPayload returns what an IPv4 packet carries to the port of the gossip, nil if
// that is something else.
func gossipPayload(p []byte) []byte {
	const udpHeader, gossipPort = 8, 7946
	if len(p) < 20 || p[0]>>4 != 4 || p[9] != unix.IPPROTO_UDP {
		return nil
	}
	header := int(p[0]&15) * 4
	if len(p) < header+udpHeader || binary.BigEndian.Uint16(p[header+2:]) != gossipPort {
		return nil
	}
	return p[header+udpHeader:]
}
