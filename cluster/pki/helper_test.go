package pki

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// testTime is when certificates are made in tests with their own clock.
var testTime = time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC)

// at is a clock that stands still.
func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// newCA makes a CA in a new directory.
func newCA(t testing.TB, now time.Time) string {
	t.Helper()
	dir := t.TempDir()
	must(t, createCA(dir, 0, now))
	return dir
}

// newNode makes a certificate and returns its files.
func newNode(t testing.TB, dir, name string, now time.Time) Files {
	t.Helper()
	must(t, issue(dir, NodeOptions{Name: name}, now))
	return filesOf(dir, name)
}

func filesOf(dir, name string) Files {
	cert, key := NodeFiles(dir, name)
	return Files{CA: filepath.Join(dir, CAFile), Cert: cert, Key: key}
}

// mustLoad loads files that must be valid.
func mustLoad(t testing.TB, f Files, now func() time.Time) *Loader {
	t.Helper()
	l, err := load(f, nil, now)
	must(t, err)
	return l
}

// observe returns a logger and its lines.
func observe() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	return zap.New(core), logs
}

// copyFile replaces a file by another one, not atomically, and keeps the mode for keys.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, text, 0o600))
}

// connect runs a handshake, and sends a byte from the server. The client is done before the server
// checks its certificate; with the byte a refusal by the server reaches the client. serial is that
// of the server's certificate.
func connect(t testing.TB, server, client *tls.Config) (serial string, serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	deadline := time.Now().Add(30 * time.Second)
	must(t, errors.Join(a.SetDeadline(deadline), b.SetDeadline(deadline)))
	done := make(chan error, 1)
	go func() { // ends with the handshake; the function waits for it
		conn := tls.Server(a, server)
		err := conn.Handshake()
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		a.Close()
		done <- err
	}()
	conn := tls.Client(b, client)
	clientErr = conn.Handshake()
	if clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1))
	}
	if certs := conn.ConnectionState().PeerCertificates; len(certs) > 0 {
		serial = certs[0].SerialNumber.String()
	}
	b.Close()
	return serial, <-done, clientErr
}

// mustConnect requires that a handshake succeeds.
func mustConnect(t testing.TB, server, client *tls.Config) (serial string) {
	t.Helper()
	serial, serverErr, clientErr := connect(t, server, client)
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server %v, client %v", serverErr, clientErr)
	}
	return serial
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
