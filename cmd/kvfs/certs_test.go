package main

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestCertsInit shows that one command makes all that two nodes need to know each
// other, and prints settings that are accepted with it.
func TestCertsInit(t *testing.T) {
	cleanEnv(t)
	dir := filepath.Join(t.TempDir(), "pki")
	code, out, errs := runCLI("certs", "init", "--dir", dir, "--node", "gpu-1, 10.0.0.1,gpu-1.example", "--node=gpu-2,[fd00::2]")
	if code != exit.OK || errs != "" {
		t.Fatalf("exit code %d, stderr %q", code, errs)
	}
	for _, want := range []string{
		"Certificate authority of the cluster: " + dir + "/ca.pem\n", "Its key stays here", "\n\nNode gpu-1, valid until 20",
		"\n  " + dir + "/ca.pem " + dir + "/gpu-2.pem " + dir + "/gpu-2-key.pem\n",
		"    ca: /etc/kvfs/ca.pem\n    cert: /etc/kvfs/gpu-2.pem\n    key: /etc/kvfs/gpu-2-key.pem\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	_, settings, _ := strings.Cut(out, "and set there:\n")
	settings, _, _ = strings.Cut(settings, "\n\n")
	c, err := config.Load(config.Sources{File: writeTemp(t, "c.yaml", settings)})
	if err != nil || c.NodeName != "gpu-1" || !c.TLS.On() {
		t.Errorf("the settings load as %+v, %v:\n%s", c, err, settings)
	}

	loaders := map[string]*pki.Loader{}
	for _, name := range []string{"gpu-1", "gpu-2"} {
		cert, key := pki.NodeFiles(dir, name)
		l, err := pki.Load(pki.Files{CA: filepath.Join(dir, pki.CAFile), Cert: cert, Key: key}, nil)
		must(t, err)
		loaders[name] = l
	}
	a, b := net.Pipe()
	must(t, errors.Join(a.SetDeadline(time.Now().Add(30*time.Second)), b.SetDeadline(time.Now().Add(30*time.Second))))
	done := make(chan error, 1)
	go func() { done <- tls.Server(a, loaders["gpu-1"].Server()).Handshake() }() // ends with the handshake, below
	if err := errors.Join(tls.Client(b, loaders["gpu-2"].Client("gpu-1")).Handshake(), <-done); err != nil {
		t.Error(err)
	}

	code, out, errs = runCLI("certs", "issue", "--dir", dir, "gpu-3", "10.0.0.3")
	if code != exit.OK || errs != "" || !strings.HasPrefix(out, "Node gpu-3, valid until 20") {
		t.Errorf("issue: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
}

// TestCertsRefuses shows what is refused, with which code, and that nothing is
// overwritten or half made.
func TestCertsRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if code, out, errs := runCLI("certs", "init", "--dir", dir); code != exit.OK || !strings.Contains(out, "kvfs certs issue --dir "+dir+" NAME") {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	before := readAll(t, dir)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"certs"}, exit.Usage, "kvfs: a command is missing: one of init, issue (see kvfs certs --help)\n"},
		{[]string{"certs", "isue"}, exit.Usage, "kvfs: unknown command \"isue\"; did you mean \"issue\"?"},
		{[]string{"certs", "init", "x"}, exit.Usage, "kvfs: unknown command \"x\" for \"kvfs certs init\""},
		{[]string{"certs", "issue"}, exit.Usage, "kvfs: requires at least 1 arg(s)"},
		{[]string{"certs", "issue", "--dir", dir, "a/b"}, exit.Usage, `kvfs: pki: "a/b" cannot name a node`},
		{[]string{"certs", "issue", "--dir", dir, "a", "b c"}, exit.Usage, `kvfs: pki: "b c" is not a host name`},
		{[]string{"certs", "init", "--dir", dir + "2", "--node", "a", "--node", "a,b"}, exit.Usage, "kvfs: --node a,b: a is given twice"},
		{[]string{"certs", "init", "--dir", dir + "2", "--node", ""}, exit.Usage, `kvfs: --node : pki: "" cannot name a node`},
		{[]string{"certs", "init", "--dir", dir}, exit.Runtime, "kvfs: pki: create " + dir + "/ca-key.pem: file already exists\n"},
		{[]string{"certs", "issue", "--dir", dir + "2", "a"}, exit.Runtime, "kvfs: pki: open " + dir + "2/ca.pem: no such file"},
	} {
		code, _, errs := runCLI(tc.args...)
		if code != tc.code || !strings.HasPrefix(errs, tc.want) {
			t.Errorf("%q: exit code %d, stderr %q, want %d, %q", tc.args, code, errs, tc.code, tc.want)
		}
	}
	if after := readAll(t, dir); after != before {
		t.Errorf("files changed from\n%s\nto\n%s", before, after)
	}
	if _, err := os.Stat(dir + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("wrong usage made a directory: %v", err)
	}
}

// readAll returns names and contents of the files in a directory.
func readAll(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var all strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		all.WriteString(e.Name() + "\n" + string(text))
	}
	return all.String()
}
