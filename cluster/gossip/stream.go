package gossip

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

// channel makes streams between holders of a key, and refuses all others.
//
// A stream is TLS 1.3 with a certificate that neither side checks. Then both sides prove that
// they hold a key. Each sends an HMAC of a value that TLS gives only to the two ends of this
// connection (RFC 5705, as in RFC 9266). The HMAC key is derived from the first key of the
// keyring. So a stream cannot be recorded and replayed, and nobody can sit in the middle.
// Memberlist's own encryption runs inside.
type channel struct {
	keys *Keyring
	conf *tls.Config
}

var errNoProof = errors.New("stream without proof of a key of this cluster")

func newChannel(keys *Keyring) (*channel, error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, priv)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	return &channel{keys: keys, conf: &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: priv}},
		InsecureSkipVerify:     true, // the proof below replaces a certificate
		SessionTicketsDisabled: true,
	}}, nil
}

// accept makes a stream of a connection from another node.
func (c *channel) accept(raw net.Conn, limit time.Duration) (net.Conn, error) {
	return c.open(tls.Server(raw, c.conf), limit, "server", "client")
}

// dial makes a stream of a connection to another node.
func (c *channel) dial(raw net.Conn, limit time.Duration) (net.Conn, error) {
	return c.open(tls.Client(raw, c.conf), limit, "client", "server")
}

func (c *channel) open(conn *tls.Conn, limit time.Duration, me, other string) (net.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	if err := conn.HandshakeContext(context.Background()); err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	state := conn.ConnectionState()
	secret, err := state.ExportKeyingMaterial("EXPORTER-kvfs-gossip", nil, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	if me == "client" {
		// The calling side proves first. So a caller without a key gets no proof.
		if err := c.prove(conn, secret, me); err != nil {
			return nil, err
		}
	}
	proof := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, proof); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoProof, err)
	}
	if !c.holds(secret, other, proof) {
		return nil, errNoProof
	}
	if me == "server" {
		if err := c.prove(conn, secret, me); err != nil {
			return nil, err
		}
	}
	return conn, conn.SetDeadline(time.Time{})
}

func (c *channel) prove(conn net.Conn, secret []byte, role string) error {
	if _, err := conn.Write(proofOf(c.keys.set.Load().streams[0], secret, role)); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	return nil
}

// holds reports whether a proof fits any of our keys.
func (c *channel) holds(secret []byte, role string, proof []byte) bool {
	for _, key := range c.keys.set.Load().streams {
		if hmac.Equal(proof, proofOf(key, secret, role)) {
			return true
		}
	}
	return false
}

func proofOf(key, secret []byte, role string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(role))
	h.Write([]byte{0})
	h.Write(secret)
	return h.Sum(nil)
}
