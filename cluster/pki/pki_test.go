package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHandshake shows that two nodes of one CA connect, with TLS 1.3, under the right name only,
// that there is no session to resume, and that a node detects that its certificate is that of another.
func TestHandshake(t *testing.T) {
	dir := newCA(t, time.Now())
	a := mustLoad(t, newNode(t, dir, "gpu-1", time.Now()), time.Now)
	b := mustLoad(t, newNode(t, dir, "gpu_2.rack", time.Now()), time.Now)
	for _, client := range []*tls.Config{b.Client("gpu-1"), b.ClientAny()} {
		mustConnect(t, a.Server(), client)
	}
	mustConnect(t, b.Server(), a.Client("gpu_2.rack"))
	if err := a.CheckName("gpu-1"); err != nil {
		t.Error(err)
	}
	if err := a.CheckName("gpu-2"); err == nil || !strings.Contains(err.Error(), `gpu-1.pem is not of node "gpu-2"`) {
		t.Errorf("certificate of another node: %v", err)
	}

	_, serverErr, clientErr := connect(t, a.Server(), b.Client("gpu-3"))
	if _, ok := errors.AsType[x509.HostnameError](clientErr); !ok || serverErr == nil {
		t.Errorf("wrong name: client %v, server %v", clientErr, serverErr)
	}
	old := b.ClientAny()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, serverErr, clientErr := connect(t, a.Server(), old); serverErr == nil || clientErr == nil {
		t.Error("TLS 1.2 is taken")
	}
	again := b.ClientAny()
	again.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	again.VerifyConnection = func(s tls.ConnectionState) error {
		if s.DidResume || s.Version != tls.VersionTLS13 {
			return errors.New("resumed, or not TLS 1.3")
		}
		return nil
	}
	server := a.Server() // the same configuration twice, because it has the keys of sessions
	for range 2 {
		mustConnect(t, server, again)
	}
}

// TestStrangers shows that neither side accepts a peer without a certificate of the CA, or with one
// that is expired, not yet valid, or for the other usage.
func TestStrangers(t *testing.T) {
	dir, foreign := newCA(t, testTime.AddDate(0, 0, -1)), newCA(t, testTime)
	us := mustLoad(t, newNode(t, dir, "us", testTime), at(testTime))
	must(t, issue(dir, NodeOptions{Name: "short", Valid: time.Minute}, testTime.Add(-2*time.Hour)))
	then := testTime.Add(-2 * time.Hour)
	stranger := func(f Files, when time.Time) *Loader {
		l := mustLoad(t, f, at(when))
		l.current.Load().pool = us.current.Load().pool // it accepts us
		l.now = at(testTime)
		return l
	}
	for name, them := range map[string]*Loader{
		"foreign": stranger(newNode(t, foreign, "us", testTime), testTime),
		"expired": stranger(filesOf(dir, "short"), then),
		"later":   stranger(newNode(t, dir, "later", testTime.Add(2*time.Hour)), testTime.Add(2*time.Hour)),
	} {
		if _, serverErr, clientErr := connect(t, us.Server(), them.ClientAny()); serverErr == nil || clientErr == nil {
			t.Errorf("%s client: server %v, client %v", name, serverErr, clientErr)
		}
		if _, serverErr, clientErr := connect(t, them.Server(), us.ClientAny()); serverErr == nil || clientErr == nil {
			t.Errorf("%s server: server %v, client %v", name, serverErr, clientErr)
		}
	}
	bare := us.ClientAny()
	bare.GetClientCertificate = nil
	if _, serverErr, clientErr := connect(t, us.Server(), bare); serverErr == nil || clientErr == nil {
		t.Errorf("no certificate: server %v, client %v", serverErr, clientErr)
	}
	for usage, refused := range map[x509.ExtKeyUsage]string{x509.ExtKeyUsageClientAuth: "server", x509.ExtKeyUsageServerAuth: "client"} {
		them := halfUsage(t, dir, usage)
		_, asServer, _ := connect(t, us.Server(), them.ClientAny())
		_, _, asClient := connect(t, them.Server(), us.ClientAny())
		if (asServer != nil) != (refused == "client") || (asClient != nil) != (refused == "server") {
			t.Errorf("usage %v: as client %v, as server %v, want %s refused", usage, asServer, asClient, refused)
		}
	}
}

// TestReload shows that files that are replaced one by one change nothing until they fit together,
// that handshakes meanwhile all succeed, and that configurations made before use the new files.
func TestReload(t *testing.T) {
	dir, next := newCA(t, testTime), newCA(t, testTime)
	f := newNode(t, dir, "a", testTime)
	log, logs := observe()
	l, err := load(f, log, at(testTime))
	must(t, err)
	server, client := l.Server(), l.Client("a")
	first := mustConnect(t, server, client)
	l.reload()
	if logs.Len() != 0 {
		t.Errorf("unchanged files are logged: %v", logs.All())
	}

	replacement := newNode(t, next, "a", testTime)
	// The bundle of both CAs: still the first certificate.
	bundle(t, f.CA, f.CA, replacement.CA)
	l.reload()
	if got := mustConnect(t, server, client); got != first {
		t.Errorf("with both CAs: serial %s, want %s", got, first)
	}
	if logs.FilterMessageSnippet("using the changed").Len() != 1 {
		t.Errorf("logged %v", logs.All())
	}

	// Half replaced and read twice: one warning.
	copyFile(t, replacement.Cert, f.Cert)
	l.reload()
	l.reload()
	if got := mustConnect(t, server, client); got != first || logs.FilterMessageSnippet("are not used").Len() != 1 {
		t.Errorf("half replaced: serial %s, want %s; logged %v", got, first, logs.All())
	}
	copyFile(t, replacement.Key, f.Key)
	l.reload()
	second := mustConnect(t, server, client)
	if second == first {
		t.Error("the new certificate is not used")
	}

	// A peer that still has the old certificate is accepted until its CA goes.
	late := mustLoad(t, newNode(t, dir, "late", testTime), at(testTime))
	mustConnect(t, server, late.ClientAny())
	copyFile(t, replacement.CA, f.CA)
	l.reload()
	if _, serverErr, _ := connect(t, server, late.ClientAny()); serverErr == nil {
		t.Error("a certificate of the old CA is still taken")
	}
	if got := mustConnect(t, server, client); got != second {
		t.Errorf("serial %s, want %s", got, second)
	}

	for name, spoil := range map[string]func() error{
		"gone":     func() error { return os.Remove(f.Cert) },
		"readable": func() error { return os.Chmod(f.Key, 0o644) },
		"garbage":  func() error { return os.WriteFile(f.CA, []byte("x"), 0o600) },
	} {
		must(t, spoil())
		before := logs.FilterMessageSnippet("are not used").Len()
		l.reload()
		l.reload()
		if got := logs.FilterMessageSnippet("are not used").Len(); got != before+1 || mustConnect(t, server, client) != second {
			t.Errorf("%s: %d warnings, want one", name, got-before)
		}
	}
}

// TestReloadHeals shows that a certificate that is not yet valid is refused, and counts when its
// time has come, without a change of the file.
func TestReloadHeals(t *testing.T) {
	dir := newCA(t, testTime)
	f := newNode(t, dir, "a", testTime)
	now := testTime
	l := mustLoad(t, f, func() time.Time { return now })
	first := mustConnect(t, l.Server(), l.Client("a"))
	later := newNode(t, dir, "b", testTime.Add(5*time.Hour))
	copyFile(t, later.Cert, f.Cert)
	copyFile(t, later.Key, f.Key)
	l.reload()
	if got := mustConnect(t, l.Server(), l.ClientAny()); got != first {
		t.Error("taken over before its time")
	}
	now = testTime.Add(4 * time.Hour)
	l.reload()
	if got := mustConnect(t, l.Server(), l.ClientAny()); got == first {
		t.Error("not taken over at its time")
	}
}

// TestWatch shows that Watch uses a change by itself while handshakes go on, and that it ends.
func TestWatch(t *testing.T) {
	dir := newCA(t, time.Now())
	f := newNode(t, dir, "a", time.Now())
	l := mustLoad(t, f, time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { l.Watch(ctx) })
	defer ended.Wait()
	defer cancel()

	server, client := l.Server(), l.Client("a")
	first := mustConnect(t, server, client)
	must(t, os.MkdirAll(dir+"/new", 0o700))
	for _, name := range []string{CAFile, CAKeyFile} {
		copyFile(t, dir+"/"+name, dir+"/new/"+name)
	}
	n := newNode(t, dir+"/new", "a", time.Now())
	copyFile(t, n.Key, f.Key) // the other order than above
	copyFile(t, n.Cert, f.Cert)
	for deadline := time.Now().Add(30 * time.Second); mustConnect(t, server, client) == first; {
		if time.Now().After(deadline) {
			t.Fatal("the change is not taken over")
		}
	}
}

// TestNotice shows the warning before a certificate ends: once a day.
func TestNotice(t *testing.T) {
	dir := newCA(t, testTime)
	f := newNode(t, dir, "a", testTime)
	log, logs := observe()
	now := testTime
	l, err := load(f, log, func() time.Time { return now })
	must(t, err)
	end := l.NotAfter()
	if want := testTime.AddDate(1, 0, 0); !end.Equal(want) {
		t.Errorf("valid until %v, want %v", end, want)
	}
	for _, step := range []struct {
		left time.Duration
		want int
	}{{15 * 24 * time.Hour, 0}, {13 * 24 * time.Hour, 1}, {13*24*time.Hour - time.Minute, 1}, {11 * 24 * time.Hour, 2}} {
		now = end.Add(-step.left)
		l.notice()
		if got := logs.FilterMessageSnippet("expires soon").Len(); got != step.want {
			t.Errorf("%v before the end: %d warnings, want %d", step.left, got, step.want)
		}
	}
}
