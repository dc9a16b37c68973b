package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// bundle writes the certificates of several files into one.
func bundle(t testing.TB, to string, from ...string) {
	t.Helper()
	var all []byte
	for _, name := range from {
		text, err := os.ReadFile(name)
		must(t, err)
		all = append(append(all, "# "+name+"\n"...), text...)
	}
	must(t, os.WriteFile(to, all, 0o600))
}

// newUsage makes a certificate of the CA in dir for one usage only.
func newUsage(t testing.TB, dir string, usage x509.ExtKeyUsage) Files {
	t.Helper()
	ca, caKey, err := readCA(dir, testTime)
	must(t, err)
	c, err := template(testTime, 0, 1)
	must(t, err)
	name := "usage-" + c.SerialNumber.String()
	c.Subject, c.DNSNames = pkix.Name{CommonName: name}, []string{DNSName(name)}
	c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	f := filesOf(dir, name)
	must(t, writePair(f.Cert, f.Key, c, ca, key, caKey))
	return f
}

// halfUsage is a node with a certificate for one usage, which Load would refuse.
func halfUsage(t testing.TB, dir string, usage x509.ExtKeyUsage) *Loader {
	t.Helper()
	f := newUsage(t, dir, usage)
	l := mustLoad(t, newNode(t, dir, strings.TrimSuffix(filepath.Base(f.Cert), ".pem")+"-both", testTime), at(testTime))
	half := *l.current.Load()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	must(t, err)
	half.cert, half.leaf = &pair, pair.Leaf
	l.current.Store(&half)
	return l
}

// TestLoadRefuses shows every way in which files are refused, with the name of the file.
func TestLoadRefuses(t *testing.T) {
	dir, foreign := newCA(t, testTime), newCA(t, testTime)
	good, other := newNode(t, dir, "good", testTime), newNode(t, dir, "other", testTime)
	write := func(name, text string) string {
		name = filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	with := func(change func(f *Files)) Files {
		f := good
		change(&f)
		return f
	}
	modeKey := func(mode os.FileMode) string {
		name := write("mode-key.pem", "")
		copyFile(t, good.Key, name)
		must(t, os.Chmod(name, mode))
		return name
	}
	for name, tc := range map[string]struct {
		files Files
		when  time.Duration // after the certificates were made
		want  string
	}{
		"good":              {good, 0, ""},
		"key by its group":  {with(func(f *Files) { f.Key = modeKey(0o640) }), 0, ""},
		"read-only key":     {with(func(f *Files) { f.Key = modeKey(0o400) }), 0, ""},
		"no CA":             {with(func(f *Files) { f.CA = "/absent/ca.pem" }), 0, "/absent/ca.pem: no such file"},
		"no certificate":    {with(func(f *Files) { f.Cert = "/absent/a.pem" }), 0, "/absent/a.pem: no such file"},
		"no key":            {with(func(f *Files) { f.Key = "/absent/k.pem" }), 0, "/absent/k.pem: no such file"},
		"CA not PEM":        {with(func(f *Files) { f.CA = write("ca", "x") }), 0, "ca: no certificate in it: not PEM?"},
		"certificate empty": {with(func(f *Files) { f.Cert = write("crt", "") }), 0, "crt: no certificate in it: not PEM?"},
		"key not PEM":       {with(func(f *Files) { f.Key = write("key", "x") }), 0, "key is not the key of " + good.Cert},
		"key for a CA":      {with(func(f *Files) { f.CA = good.Key }), 0, "no certificate in it"},
		"bad certificate": {with(func(f *Files) {
			f.Cert = write("crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		}), 0, "crt: certificate 1: x509"},
		"huge":            {with(func(f *Files) { f.CA = write("ca", strings.Repeat("x", maxFile+1)) }), 0, "ca: more than"},
		"node as a CA":    {with(func(f *Files) { f.CA = other.Cert }), 0, "other.pem: certificate 1 (CN=other) is not of a CA"},
		"other key":       {with(func(f *Files) { f.Key = other.Key }), 0, "other-key.pem is not the key of " + good.Cert},
		"key of all":      {with(func(f *Files) { f.Key = modeKey(0o604) }), 0, "mode-key.pem: mode 0604 lets others at the key: want 0600, or 0640"},
		"key for writing": {with(func(f *Files) { f.Key = modeKey(0o660) }), 0, "mode 0660"},
		"foreign CA":      {with(func(f *Files) { f.CA = filepath.Join(foreign, CAFile) }), 0, "unknown authority"},
		"expired":         {good, 366 * 24 * time.Hour, "good.pem: CN=good has expired: valid until 2031-05-01T12:00:00Z, and it is 2031-05-02T12:00:00Z"},
		"CA expired":      {good, 11 * 366 * 24 * time.Hour, "ca.pem: CN=kvfs CA"},
		"early":           {good, -2 * time.Hour, "is not yet valid: from 2030-05-01T11:00:00Z on, and it is 2030-05-01T10:00:00Z"},
		"server only":     {newUsage(t, dir, x509.ExtKeyUsageServerAuth), 0, "as a client, with the CA"},
		"client only":     {newUsage(t, dir, x509.ExtKeyUsageClientAuth), 0, "as a server, with the CA"},
	} {
		_, err := load(tc.files, nil, at(testTime.Add(tc.when)))
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "pki: ") {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// TestBundle shows that one CA of several may be expired.
func TestBundle(t *testing.T) {
	dir, old := newCA(t, testTime), newCA(t, testTime.AddDate(-11, 0, 0))
	f := newNode(t, dir, "a", testTime)
	bundle(t, f.CA, filepath.Join(old, CAFile), f.CA)
	l := mustLoad(t, f, at(testTime))
	mustConnect(t, l.Server(), l.Client("a"))
	// Certificates can still be made: the CA is the one that belongs to the key.
	newNode(t, dir, "b", testTime)
	bundle(t, f.CA, filepath.Join(old, CAFile))
	if err := issue(dir, NodeOptions{Name: "c"}, testTime); err == nil || !strings.Contains(err.Error(), "ca-key.pem is not the key of") {
		t.Errorf("key of another CA: %v", err)
	}
}
