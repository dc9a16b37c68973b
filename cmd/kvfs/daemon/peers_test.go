package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
)

// TestNodeCertificate shows which certificates the bulk channel accepts: a listener that of any
// node, a connecting node only that of the node with the address.
func TestNodeCertificate(t *testing.T) {
	for _, c := range []struct {
		names    []string // of the certificate
		nodes    []string // that have the address
		any, one bool
	}{
		{[]string{"b.kvfs"}, []string{"b"}, true, true},
		{[]string{"b.kvfs"}, []string{"a", "b"}, true, true},
		{[]string{"c.kvfs"}, []string{"a", "b"}, true, false},
		{[]string{"b.kvfs"}, nil, true, false},
		{[]string{"www.example.org"}, []string{"b"}, false, false},
		{nil, []string{"b"}, false, false},
	} {
		cert := &x509.Certificate{DNSNames: c.names}
		if err := anyNode(cert); (err == nil) != c.any {
			t.Errorf("certificate of %v: %v", c.names, err)
		}
		if err := oneOf("192.0.2.1:1", c.nodes)(cert); (err == nil) != c.one {
			t.Errorf("certificate of %v for %v: %v", c.names, c.nodes, err)
		}
	}
	bad := errors.New("not of the CA")
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{{DNSNames: []string{"b.kvfs"}}}}
	for _, want := range []error{bad, nil} {
		conf := checked(&tls.Config{VerifyConnection: func(tls.ConnectionState) error { return want }}, anyNode)
		if err := conf.VerifyConnection(state); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// TestPaths shows what the values of peer.transport mean to the cluster.
func TestPaths(t *testing.T) {
	for text, want := range map[string]cluster.Path{config.Auto: cluster.PathAuto, config.TransportTCP: cluster.PathTCP, config.TransportRDMA: cluster.PathRDMA} {
		if paths[text] != want {
			t.Errorf("%s: got %v", text, paths[text])
		}
	}
}

// TestNoPeers shows that without peers nobody needs to know which blocks go.
func TestNoPeers(t *testing.T) {
	if got := (*peers)(nil).freed(); got != nil {
		t.Error("the engine tells of blocks that nobody has registered")
	}
}
