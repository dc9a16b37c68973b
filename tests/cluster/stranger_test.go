package cluster

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// servedSerial returns the serial number of the certificate that a node shows.
func servedSerial(t *testing.T, w *world, n *harness.Node) string {
	t.Helper()
	var serial string
	w.Net.In(n.Index, func() {
		d := &net.Dialer{Timeout: harness.Deadline}
		c, err := d.DialContext(t.Context(), "tcp", n.Members()[0].ControlAddr)
		must(t, err)
		defer c.Close()
		client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		must(t, client.HandshakeContext(t.Context()))
		serial = client.ConnectionState().PeerCertificates[0].SerialNumber.String()
	})
	return serial
}
