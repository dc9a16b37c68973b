package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestIssue shows the content of the certificates and the modes of the files.
func TestIssue(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "pki")
	must(t, CreateCA(dir, 0))
	made := time.Now()
	o := NodeOptions{Name: "gpu-1", Hosts: []string{"gpu-1.example", "gpu-1"}, Addrs: []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}}
	must(t, Issue(dir, o))
	for name, want := range map[string]os.FileMode{
		".": 0o700, "ca.pem": 0o644, "ca-key.pem": 0o600, "gpu-1.pem": 0o644, "gpu-1-key.pem": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 4 {
		t.Errorf("files %v, %v; want 4", entries, err)
	}

	cas, err := ReadCertificates(filepath.Join(dir, CAFile))
	if err != nil || len(cas) != 1 {
		t.Fatalf("CA: %v, %v", cas, err)
	}
	nodes, err := ReadCertificates(filepath.Join(dir, "gpu-1.pem"))
	if err != nil || len(nodes) != 1 {
		t.Fatalf("node: %v, %v", nodes, err)
	}
	ca, node := cas[0], nodes[0]
	if !ca.IsCA || !ca.MaxPathLenZero || ca.KeyUsage&x509.KeyUsageCertSign == 0 || !strings.HasPrefix(ca.Subject.CommonName, "kvfs CA ") {
		t.Errorf("CA: %+v", ca)
	}
	if node.IsCA || node.Subject.CommonName != "gpu-1" || !slices.Equal(node.DNSNames, []string{"gpu-1.kvfs", "gpu-1", "gpu-1.example"}) ||
		len(node.IPAddresses) != 2 || !node.IPAddresses[1].Equal(o.Addrs[1]) ||
		!slices.Equal(node.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}) {
		t.Errorf("node: subject %s, names %v, addresses %v, usages %v", node.Subject, node.DNSNames, node.IPAddresses, node.ExtKeyUsage)
	}
	for _, c := range []*x509.Certificate{ca, node} {
		key, ok := c.PublicKey.(*ecdsa.PublicKey)
		if !ok || key.Curve != elliptic.P256() || c.SerialNumber.BitLen() != 127 {
			t.Errorf("%s: key %T, serial of %d bits", c.Subject, c.PublicKey, c.SerialNumber.BitLen())
		}
		if back := made.Sub(c.NotBefore); back < 59*time.Minute || back > 70*time.Minute {
			t.Errorf("%s: counts from %v before it was made, want an hour", c.Subject, back)
		}
	}
	if years := ca.NotAfter.Sub(made).Hours() / 24 / 365; years < 9.9 || years > 10.1 {
		t.Errorf("CA is valid for %.1f years, want 10", years)
	}
	if years := node.NotAfter.Sub(made).Hours() / 24 / 365; years < 0.99 || years > 1.01 {
		t.Errorf("node is valid for %.2f years, want 1", years)
	}
	if ca.SerialNumber.Cmp(node.SerialNumber) == 0 {
		t.Error("one serial number twice")
	}
}

// TestNeverOverwritten shows that existing files stay as they are, and that a failed call leaves no
// file.
func TestNeverOverwritten(t *testing.T) {
	dir := newCA(t, testTime)
	f := newNode(t, dir, "a", testTime)
	texts := map[string]string{}
	for _, name := range []string{f.CA, filepath.Join(dir, CAKeyFile), f.Cert, f.Key} {
		text, err := os.ReadFile(name)
		must(t, err)
		texts[name] = string(text)
	}
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, os.ErrExist) {
			t.Errorf("%s: got %v", what, err)
		}
		for name, want := range texts {
			if got, err := os.ReadFile(name); err != nil || string(got) != want {
				t.Errorf("%s: %s has changed (%v)", what, name, err)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(texts) {
			t.Errorf("%s: files %v, %v; want %d", what, entries, err, len(texts))
		}
	}
	check("second CA", createCA(dir, 0, testTime))
	check("second node", issue(dir, NodeOptions{Name: "a"}, testTime))
	for _, name := range []string{f.Key, filepath.Join(dir, CAKeyFile)} {
		must(t, os.Rename(name, name+".away"))
		texts[name+".away"] = texts[name]
		delete(texts, name)
		if name == f.Key {
			check("node whose key is away", issue(dir, NodeOptions{Name: "a"}, testTime))
		} else {
			check("CA whose key is away", createCA(dir, 0, testTime))
		}
	}
	if err := issue(dir, NodeOptions{Name: "b"}, testTime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the CA's key: %v", err)
	}
}

// TestIssueRefuses shows bad names, hosts and times, all in one error.
func TestIssueRefuses(t *testing.T) {
	dir := newCA(t, testTime)
	for name, tc := range map[string]struct {
		o    NodeOptions
		when time.Time
		want string
	}{
		"empty":     {NodeOptions{}, testTime, `"" cannot name a node`},
		"path":      {NodeOptions{Name: "a/b"}, testTime, `"a/b" cannot name a node`},
		"long":      {NodeOptions{Name: strings.Repeat("a", 65)}, testTime, "cannot name a node"},
		"hidden":    {NodeOptions{Name: ".a"}, testTime, `begins with '.'`},
		"like a CA": {NodeOptions{Name: "ca"}, testTime, "the files of the CA are called so"},
		"its key":   {NodeOptions{Name: "ca-key"}, testTime, "the files of the CA are called so"},
		"several":   {NodeOptions{Name: "a b", Hosts: []string{"x y"}, Addrs: []net.IP{{1}}, Valid: -1}, testTime, "\npki: valid for -1ns"},
		"expired":   {NodeOptions{Name: "a"}, testTime.AddDate(11, 0, 0), "has expired"},
		"early":     {NodeOptions{Name: "a"}, testTime.Add(-2 * time.Hour), "is not yet valid"},
	} {
		if err := issue(dir, tc.o, tc.when); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files %v, %v; want those of the CA", entries, err)
	}
	if err := createCA(t.TempDir(), -1, testTime); err == nil {
		t.Error("a CA of negative time")
	}
	long := NodeOptions{Name: strings.Repeat("a", 64), Valid: 100 * 365 * 24 * time.Hour}
	must(t, issue(dir, long, testTime))
	l := mustLoad(t, filesOf(dir, long.Name), at(testTime))
	if want := testTime.AddDate(10, 0, 0); !l.NotAfter().Equal(want) {
		t.Errorf("valid until %v, want the end of the CA, %v", l.NotAfter(), want)
	}
	mustConnect(t, l.Server(), l.Client(long.Name))
	must(t, os.Chmod(filepath.Join(dir, CAKeyFile), 0o644))
	if err := issue(dir, NodeOptions{Name: "c"}, testTime); err == nil || !strings.Contains(err.Error(), "lets others at the key") {
		t.Errorf("open key of the CA: %v", err)
	}
}
