package s3test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// NewCA writes the certificate of a new CA to a file, and a certificate and a key for 127.0.0.1 from it to two others. It
// returns the names of the three.
func NewCA(tb testing.TB, dir string) (ca, cert, key string) {
	tb.Helper()
	names := [3]string{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	must(tb, writeCA(names))
	return names[0], names[1], names[2]
}

func writeCA(names [3]string) error {
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kvfs test CA"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "s3"}, NotAfter: root.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caDER, err1 := x509.CreateCertificate(rand.Reader, root, root, &caKey.PublicKey, caKey)
	leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, caKey)
	keyDER, err3 := x509.MarshalECPrivateKey(key)
	write := func(name, kind string, der []byte) error {
		return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	}
	return errors.Join(err1, err2, err3, write(names[0], "CERTIFICATE", caDER), write(names[1], "CERTIFICATE", leafDER), write(names[2], "EC PRIVATE KEY", keyDER))
}

// certify makes the server one of HTTPS.
func (s *Server) certify() {
	ca, cert, key := NewCA(s.tb, s.base)
	s.CAFile, s.cert = ca, []string{cert, key}
}

// trusting returns a transport that trusts the CA of a file.
func trusting(tb testing.TB, file string) *http.Transport {
	tb.Helper()
	text, err := os.ReadFile(file)
	must(tb, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
}
