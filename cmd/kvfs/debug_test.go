package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestDebugBundle shows the files of a bundle with and without a mount, that no content of a file of keys is in it, and
// what a target that cannot be written is answered.
func TestDebugBundle(t *testing.T) {
	cleanEnv(t)
	key := writeTemp(t, "key.pem", "-----BEGIN PRIVATE KEY-----\nhush\n")
	file := writeTemp(t, "c.yaml", "bind: 127.0.0.1\npeer: {transport: tcp, gossip_keys: "+key+"}\ntls: {ca: "+key+", cert: "+key+", key: "+key+"}\n")
	out := filepath.Join(t.TempDir(), "b.tar.gz")
	code, stdout, errs := runCLI("debug", "bundle", "-o", out, "--config", file, statusDir(t, statusExample))
	if code != exit.OK || stdout != out+"\n" {
		t.Fatalf("exit code %d, %q, %s", code, stdout, errs)
	}
	text, err := os.ReadFile(out)
	must(t, err)
	zip, err := gzip.NewReader(bytes.NewReader(text))
	must(t, err)
	got := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		text, err := io.ReadAll(r)
		must(t, err)
		if strings.Contains(string(text), "hush") {
			t.Errorf("a key in %s:\n%s", h.Name, text)
		}
		got[filepath.Base(h.Name)] = string(text)
	}
	for name, want := range map[string]string{
		"version.txt": "kvfs " + version, "config.yaml": "gossip_keys: " + key, "doctor.txt": "certificates", "doctor.json": `"checks"`,
		"kernel.txt": "Linux", "limits.txt": "Max open files", "status.json": "v1.2.3", "errors.txt": "metrics.txt: ",
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s has no %q:\n%s", name, want, got[name])
		}
	}

	for target, want := range map[string]string{"/dev/full": "no space left", filepath.Join(t.TempDir(), "x", "y"): "no such file"} {
		code, stdout, errs := runCLI("debug", "bundle", "-o", target)
		if code != exit.Runtime || stdout != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %q, %q", target, code, stdout, errs)
		}
	}
	if code, _, errs := runCLI("debug", "bundle", "-o", out, t.TempDir()); code != exit.NotMount || !strings.Contains(errs, "is not a kvfs mount") {
		t.Errorf("no mount: exit code %d, %s", code, errs)
	}
}
