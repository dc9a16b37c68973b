package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// The names of the CA's files in its directory.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca-key.pem"
)

const (
	caYears   = 10
	nodeYears = 1
	// clockSkew is how far back certificates are valid, because clocks differ.
	clockSkew = time.Hour
)

// CreateCA makes a cluster CA in dir: ca.pem and ca-key.pem (0600). It fails if there is one. It
// makes dir if it is absent, closed to others. Zero valid means 10 years.
func CreateCA(dir string, valid time.Duration) error { return createCA(dir, valid, time.Now()) }

func createCA(dir string, valid time.Duration, now time.Time) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	ca, err := template(now, valid, caYears)
	if err != nil {
		return err
	}
	// Part of the serial number distinguishes an old CA from a new one.
	ca.Subject = pkix.Name{CommonName: fmt.Sprintf("kvfs CA %.8x", ca.SerialNumber.Bytes())}
	ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	ca.IsCA, ca.BasicConstraintsValid, ca.MaxPathLenZero = true, true, true
	return writePair(filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile), ca, ca, key, key)
}

// NodeOptions describes a node's certificate.
type NodeOptions struct {
	Name  string // required: 1 to 64 letters, digits, dots, dashes, underscores
	Addrs []net.IP
	Hosts []string
	Valid time.Duration // zero means a year; never beyond the end of the CA
}

// Issue makes <name>.pem and <name>-key.pem (0600) in dir, signed by the CA there. It fails if one
// of them exists. The DNS names are "<name>.kvfs", the name, and the hosts.
func Issue(dir string, o NodeOptions) error { return issue(dir, o, time.Now()) }

func issue(dir string, o NodeOptions, now time.Time) error {
	if err := o.Check(); err != nil {
		return err
	}
	ca, caKey, err := readCA(dir, now)
	if err != nil {
		return err
	}
	node, err := template(now, o.Valid, nodeYears)
	if err != nil {
		return err
	}
	if node.NotAfter.After(ca.NotAfter) {
		node.NotAfter = ca.NotAfter
	}
	node.Subject = pkix.Name{CommonName: o.Name}
	node.KeyUsage = x509.KeyUsageDigitalSignature
	node.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	node.BasicConstraintsValid = true
	for _, host := range append([]string{DNSName(o.Name), o.Name}, o.Hosts...) {
		if !slices.Contains(node.DNSNames, host) {
			node.DNSNames = append(node.DNSNames, host)
		}
	}
	node.IPAddresses = o.Addrs
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	cert, keyFile := NodeFiles(dir, o.Name)
	return writePair(cert, keyFile, node, ca, key, caKey)
}

// NodeFiles returns the names of the files that Issue makes for a node.
func NodeFiles(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
}

var (
	nodeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?$`)
)

// Check returns all errors in o. It makes nothing.
func (o NodeOptions) Check() error {
	var errs []error
	switch {
	case !nodeName.MatchString(o.Name):
		errs = append(errs, fmt.Errorf("pki: %q cannot name a node: want 1 to 64 letters, digits, dots, dashes and underscores", o.Name))
	case o.Name[0] == '.' || o.Name[0] == '-':
		errs = append(errs, fmt.Errorf("pki: %q cannot name a node's files: it begins with %q", o.Name, o.Name[0]))
	case o.Name+".pem" == CAFile || o.Name+".pem" == CAKeyFile:
		errs = append(errs, fmt.Errorf("pki: %q cannot name a node: the files of the CA are called so", o.Name))
	}
	for _, host := range o.Hosts {
		if !hostName.MatchString(host) {
			errs = append(errs, fmt.Errorf("pki: %q is not a host name", host))
		}
	}
	for _, addr := range o.Addrs {
		if len(addr) != net.IPv4len && len(addr) != net.IPv6len {
			errs = append(errs, fmt.Errorf("pki: % x is not an IP address", []byte(addr)))
		}
	}
	if o.Valid < 0 {
		errs = append(errs, fmt.Errorf("pki: valid for %v", o.Valid))
	}
	return errors.Join(errs...)
}

// template returns a certificate with a serial number and a time. Zero valid means this many years.
func template(now time.Time, valid time.Duration, years int) (*x509.Certificate, error) {
	if valid < 0 {
		return nil, fmt.Errorf("pki: valid for %v", valid)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	serial.SetBit(serial, 126, 1) // never zero, and always of one length
	end := now.AddDate(years, 0, 0)
	if valid > 0 {
		end = now.Add(valid)
	}
	return &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-clockSkew), NotAfter: end}, nil
}

// readCA reads the CA in dir. Of the certificates in its file it takes the one that belongs to the
// key, because a new CA's file also holds the old one for a while.
func readCA(dir string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certFile, keyFile := filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile)
	cas, err := ReadCertificates(certFile)
	if err != nil {
		return nil, nil, err
	}
	text, err := readKey(keyFile)
	if err != nil {
		return nil, nil, err
	}
	b, _ := pem.Decode(text)
	if b == nil {
		return nil, nil, fmt.Errorf("pki: %s: no key in it: not PEM?", keyFile)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %s: %w", keyFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("pki: %s: a %T, not of ECDSA", keyFile, parsed)
	}
	for _, ca := range cas {
		if !key.PublicKey.Equal(ca.PublicKey) {
			continue
		}
		if !ca.IsCA {
			return nil, nil, fmt.Errorf("pki: %s (%s) is not of a CA", certFile, ca.Subject)
		}
		if err := checkTime(ca, now); err != nil {
			return nil, nil, fmt.Errorf("pki: %s: %w", certFile, err)
		}
		return ca, key, nil
	}
	return nil, nil, fmt.Errorf("pki: %s is not the key of %s", keyFile, certFile)
}

// writePair signs a certificate and writes it and its key. If one of the files exists, it fails and
// leaves no file of its own.
func writePair(certFile, keyFile string, cert, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := writeNew(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600); err != nil {
		return err
	}
	if err := writeNew(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return errors.Join(err, os.Remove(keyFile))
	}
	return nil
}

// writeNew makes a file that is either whole or absent. It fails with os.ErrExist if the file
// exists.
func writeNew(name string, text []byte, mode os.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("pki: %w", err)
		}
	}()
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	// A link, unlike a rename, fails if the name is taken.
	if err := os.Link(f.Name(), name); err != nil {
		if errors.Is(err, os.ErrExist) {
			return &os.PathError{Op: "create", Path: name, Err: os.ErrExist}
		}
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
