package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Files are the files of one node, in PEM.
type Files struct{ CA, Cert, Key string }

const (
	// watchEvery is how often Watch reads the files. They are small, and a change must count within
	// a second.
	watchEvery = 300 * time.Millisecond
	// expiryNotice is how long before its end a certificate gets a warning, and noticeEvery how
	// often.
	expiryNotice = 14 * 24 * time.Hour
	noticeEvery  = 24 * time.Hour
)

// Loader holds the present certificate and CA, and uses changed files. Its methods may be called in
// parallel.
type Loader struct {
	files Files
	log   *zap.Logger
	now   func() time.Time

	current atomic.Pointer[identity]

	seen     contents  // last contents read; only Load and Watch use it
	failing  bool      // the last contents were invalid; likewise
	noticeAt time.Time // time of the next warning of the expiry; likewise
}

// identity is a certificate with its CA. It is not changed.
type identity struct {
	cert *tls.Certificate
	leaf *x509.Certificate
	pool *x509.CertPool
}

// Load reads the files. Its error names the file and the fault: not PEM, expired, not yet valid,
// not of this CA, key of another certificate, key readable by others, usage that does not allow
// both server and client.
func Load(f Files, log *zap.Logger) (*Loader, error) { return load(f, log, time.Now) }

func load(f Files, log *zap.Logger, now func() time.Time) (*Loader, error) {
	if log == nil {
		log = zap.NewNop()
	}
	l := &Loader{files: f, log: log, now: now}
	var err error
	if l.seen, err = readFiles(f); err != nil {
		return nil, err
	}
	id, err := l.parse(l.seen)
	if err != nil {
		return nil, err
	}
	l.current.Store(id)
	l.notice()
	return l, nil
}

// Watch uses changes within a second, until ctx ends. Files that do not fit together are logged and
// change nothing, so you may replace them one by one. Watch also warns when the certificate is
// about to expire. Call it once.
func (l *Loader) Watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.reload()
			l.notice()
		}
	}
}

// reload uses the contents of the files if they differ from the last ones read. Bad contents are
// tried again, because a certificate may become valid later. They are logged once.
func (l *Loader) reload() {
	read, err := readFiles(l.files)
	changed := !read.equal(l.seen)
	if !changed && !l.failing {
		return
	}
	l.seen = read
	var id *identity
	if err == nil {
		id, err = l.parse(read)
	}
	if l.failing = err != nil; l.failing {
		if changed {
			l.log.Warn("the changed certificate files are not used: correct them; the old ones stay in use", zap.Error(err))
		}
		return
	}
	l.current.Store(id)
	l.noticeAt = time.Time{}
	l.log.Info("using the changed certificates", zap.String("cert", l.files.Cert),
		zap.Stringer("serial", id.leaf.SerialNumber), zap.Time("not_after", id.leaf.NotAfter))
}

// notice warns once a day when the certificate ends soon.
func (l *Loader) notice() {
	now, end := l.now(), l.NotAfter()
	if end.Sub(now) > expiryNotice || now.Before(l.noticeAt) {
		return
	}
	l.noticeAt = now.Add(noticeEvery)
	l.log.Warn("the certificate expires soon: replace it, or peers will refuse this node", zap.String("cert", l.files.Cert), zap.Time("not_after", end))
}

// Server returns the configuration of a listener: TLS 1.3, client certificate of the CA required.
// Each handshake uses the files loaded at that time.
func (l *Loader) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       l.now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return l.current.Load().cert, nil
		},
		// VerifyConnection verifies against the present CA; a fixed ClientCAs could not.
		ClientAuth:       tls.RequireAnyClientCert,
		VerifyConnection: func(s tls.ConnectionState) error { return l.verify(s, x509.ExtKeyUsageClientAuth, "") },
		// A resumed session would use a certificate that may be void by now.
		SessionTicketsDisabled: true,
	}
}

// Client returns the configuration of a connection to the node called name. Its certificate must be
// of the CA and have "<name>.kvfs" as a DNS name. Each handshake uses the files loaded at that
// time.
func (l *Loader) Client(name string) *tls.Config { return l.client(DNSName(name)) }

// ClientAny is Client for a peer of any name.
func (l *Loader) ClientAny() *tls.Config { return l.client("") }

// DNSName is the DNS name in the certificate of a node.
func DNSName(node string) string { return node + ".kvfs" }

func (l *Loader) client(dnsName string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       l.now,
		ServerName: dnsName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return l.current.Load().cert, nil
		},
		// Not insecure: VerifyConnection verifies everything against the present CA; a fixed
		// RootCAs could not.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return l.verify(s, x509.ExtKeyUsageServerAuth, dnsName) },
	}
}

// verify checks the certificate of a peer: of the CA, valid now, for this usage, and with the DNS
// name unless that is empty.
func (l *Loader) verify(s tls.ConnectionState, usage x509.ExtKeyUsage, dnsName string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("pki: the peer shows no certificate")
	}
	leaf := s.PeerCertificates[0]
	o := x509.VerifyOptions{
		Roots: l.current.Load().pool, Intermediates: x509.NewCertPool(),
		CurrentTime: l.now(), DNSName: dnsName, KeyUsages: []x509.ExtKeyUsage{usage},
	}
	for _, c := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(o); err != nil {
		return fmt.Errorf("pki: certificate of the peer (%s): %w", leaf.Subject, err)
	}
	return nil
}

// CheckName fails if the present certificate does not have the DNS name of the node called name:
// peers would refuse it.
func (l *Loader) CheckName(name string) error {
	if err := l.current.Load().leaf.VerifyHostname(DNSName(name)); err != nil {
		return fmt.Errorf("pki: %s is not of node %q: %w", l.files.Cert, name, err)
	}
	return nil
}

// NotAfter returns when the present certificate expires.
func (l *Loader) NotAfter() time.Time { return l.current.Load().leaf.NotAfter }
