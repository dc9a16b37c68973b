package tcp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

func TestConformanceTLS(t *testing.T) {
	server, client := testTLS(t)
	rdmatest.Run(t, func(tb testing.TB) *rdmatest.Harness {
		return faulty(Options{ServerTLS: server, ClientTLS: client})
	})
}

// TestConformanceFewConnections makes calls queue for a connection, over IPv6 where the
// machine has it.
func TestConformanceFewConnections(t *testing.T) {
	bind := "[::1]:0"
	if l, err := net.Listen("tcp", bind); err != nil {
		t.Log("IPv4 instead:", err)
		bind = "127.0.0.1:0"
	} else {
		l.Close()
	}
	rdmatest.Run(t, func(testing.TB) *rdmatest.Harness {
		return &rdmatest.Harness{Open: func(tb testing.TB, s rdma.Source) rdma.Transport {
			return open(tb, Options{Bind: bind, Source: s, Connections: 2, StallTimeout: patience})
		}}
	})
}

func TestConformanceFaults(t *testing.T) {
	rdmatest.Run(t, func(testing.TB) *rdmatest.Harness { return faulty(Options{}) })
}

// faulty has relays in front of all transports, which can be cut and stalled.
func faulty(o Options) *rdmatest.Harness {
	n := &rdmatest.Relays{}
	return &rdmatest.Harness{
		Open: func(tb testing.TB, s rdma.Source) rdma.Transport {
			r := rdmatest.NewRelay(tb, "127.0.0.1")
			o := o
			o.Bind, o.Advertise, o.Source, o.StallTimeout = "127.0.0.1:0", r.Addr().String(), s, 8*time.Second
			t := open(tb, o)
			if t.Caps().Encrypted != (o.ServerTLS != nil) {
				tb.Errorf("TLS: %v, Caps.Encrypted: %v", o.ServerTLS != nil, t.Caps().Encrypted)
			}
			r.Serve(t.listener.Addr().String())
			n.Add(t.Addr(), r)
			return t
		},
		Cut: n.Cut, Stall: n.Stall, GivesUp: true,
	}
}

// ownHost returns a loopback address that almost surely no other program uses: a test closes a port
// and opens it again, and no other program may take it in between.
func ownHost() string {
	octet := func() int { return 1 + mathrand.IntN(254) }
	return fmt.Sprintf("127.%d.%d.%d", octet(), octet(), octet())
}

func open(tb testing.TB, o Options) *Transport {
	tb.Helper()
	t, err := Open(o)
	if err != nil {
		tb.Fatal(err)
		panic("unreachable")
	}
	tb.Cleanup(func() { t.Close() })
	return t
}

// testTLS returns configurations with which both sides prove that they are of the same cluster.
func testTLS(tb testing.TB) (*tls.Config, func(string) *tls.Config) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(tb, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(tb, err)
	leaf, err := x509.ParseCertificate(der)
	must(tb, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	conf := &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13, ServerName: "node",
	}
	return conf, func(string) *tls.Config { return conf }
}
