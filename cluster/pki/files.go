package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"time"
)

// maxFile bounds a file, in bytes: a bundle of hundreds of certificates.
const maxFile = 1 << 20

// contents is the unparsed content of the files.
type contents struct{ ca, cert, key []byte }

func (c contents) equal(o contents) bool {
	return bytes.Equal(c.ca, o.ca) && bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key)
}

// readFiles reads the files, and joins the errors of those that it cannot read. It refuses a key
// that others may read.
func readFiles(f Files) (contents, error) {
	var c contents
	var ca, cert, key error
	c.ca, _, ca = readFile(f.CA)
	c.cert, _, cert = readFile(f.Cert)
	c.key, key = readKey(f.Key)
	return c, errors.Join(ca, cert, key)
}

// readKey reads a private key, and fails if others may read it.
func readKey(name string) ([]byte, error) {
	text, mode, err := readFile(name)
	if err != nil {
		return nil, err
	}
	if perm := mode.Perm(); perm&0o037 != 0 {
		return nil, fmt.Errorf("pki: %s: mode %#o lets others at the key: want 0600, or 0640", name, perm)
	}
	return text, nil
}

// readFile reads a whole file, and its mode.
func readFile(name string) ([]byte, iofs.FileMode, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, fmt.Errorf("pki: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("pki: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, 0, fmt.Errorf("pki: %w", err)
	}
	if len(text) > maxFile {
		return nil, 0, fmt.Errorf("pki: %s: more than %d bytes: not a file of certificates", name, maxFile)
	}
	return text, info.Mode(), nil
}

// ReadCertificates returns the certificates in a PEM file, at least one, in their
// order.
func ReadCertificates(name string) ([]*x509.Certificate, error) {
	text, _, err := readFile(name)
	if err != nil {
		return nil, err
	}
	return parseCertificates(name, text)
}

func parseCertificates(name string, text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			break
		}
		if b.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("pki: %s: certificate %d: %w", name, len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("pki: %s: no certificate in it: not PEM?", name)
	}
	return certs, nil
}

// parse makes an identity of c, if c is valid now.
func (l *Loader) parse(c contents) (*identity, error) {
	now := l.now()
	pool, err := l.parseCA(c.ca, now)
	if err != nil {
		return nil, err
	}
	chain, err := parseCertificates(l.files.Cert, c.cert)
	if err != nil {
		return nil, err
	}
	leaf := chain[0]
	if err := checkTime(leaf, now); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", l.files.Cert, err)
	}
	cert, err := tls.X509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("pki: %s is not the key of %s: %w", l.files.Key, l.files.Cert, err)
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	for _, use := range []struct {
		usage x509.ExtKeyUsage
		name  string
	}{{x509.ExtKeyUsageServerAuth, "server"}, {x509.ExtKeyUsageClientAuth, "client"}} {
		o := x509.VerifyOptions{Roots: pool, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use.usage}}
		if _, err := leaf.Verify(o); err != nil {
			return nil, fmt.Errorf("pki: %s as a %s, with the CA %s: %w", l.files.Cert, use.name, l.files.CA, err)
		}
	}
	return &identity{cert: &cert, leaf: leaf, pool: pool}, nil
}

// parseCA returns the CAs in text. One of several may be expired or not yet valid: it just does not
// count meanwhile.
func (l *Loader) parseCA(text []byte, now time.Time) (*x509.CertPool, error) {
	cas, err := parseCertificates(l.files.CA, text)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	var times []error
	for i, ca := range cas {
		if !ca.IsCA {
			return nil, fmt.Errorf("pki: %s: certificate %d (%s) is not of a CA", l.files.CA, i+1, ca.Subject)
		}
		if err := checkTime(ca, now); err != nil {
			times = append(times, fmt.Errorf("pki: %s: %w", l.files.CA, err))
		}
		pool.AddCert(ca)
	}
	if len(times) == len(cas) {
		return nil, errors.Join(times...)
	}
	return pool, nil
}

// checkTime fails if now is outside the validity of c; the error has both.
func checkTime(c *x509.Certificate, now time.Time) error {
	wrong := x509.CertificateInvalidError{Cert: c, Reason: x509.Expired}
	switch {
	case now.Before(c.NotBefore):
		return timeError{fmt.Sprintf("%s is not yet valid: from %s on, and it is %s", c.Subject, stamp(c.NotBefore), stamp(now)), wrong}
	case now.After(c.NotAfter):
		return timeError{fmt.Sprintf("%s has expired: valid until %s, and it is %s", c.Subject, stamp(c.NotAfter), stamp(now)), wrong}
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// timeError is the error of package x509 with a text that distinguishes too early from too late.
// The error of x509 does not.
type timeError struct {
	text string
	err  error
}

// Error returns the text.
func (e timeError) Error() string { return e.text }

// Unwrap returns the error of package x509.
func (e timeError) Unwrap() error { return e.err }
