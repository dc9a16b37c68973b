package control

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// doctorOf runs kvfs doctor --json on a mount, and returns the result and the reason of each check.
func doctorOf(t *testing.T, dir string) (results, reasons map[string]string) {
	t.Helper()
	out, errs, code := harness.Kvfs(t, "doctor", "--json", dir)
	var r struct {
		Checks []struct{ Check, Result, Reason string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	results, reasons = map[string]string{}, map[string]string{}
	failed := false
	for _, c := range r.Checks {
		results[c.Check], reasons[c.Check] = c.Result, c.Reason
		failed = failed || c.Result == "fail"
	}
	if failed != (code == 1) || code > 1 {
		t.Errorf("exit code %d, failed %v", code, failed)
	}
	return results, reasons
}

// bundleOf runs kvfs debug bundle on a mount, and returns the files of the archive.
func bundleOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	out, errs, code := harness.Kvfs(t, "debug", "bundle", "-o", path, dir)
	if code != 0 || out != path+"\n" {
		t.Fatalf("exit code %d, %q, %s", code, out, errs)
	}
	f, err := os.Open(path)
	must(t, "open the bundle", err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	must(t, "unzip the bundle", err)
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, "read the bundle", err)
		text, err := io.ReadAll(r)
		must(t, h.Name, err)
		files[filepath.Base(h.Name)] = string(text)
	}
}

// TestDoctorAndBundle: kvfs doctor and kvfs debug bundle see the daemon of a mount and its settings, and, when the daemon
// is killed, say so and end.
func TestDoctorAndBundle(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := diskMount(t, harness.Options{})
	put(t, d.Path("g", hash(0)), []byte("x"))

	results, reasons := doctorOf(t, d.Dir)
	for check, want := range map[string]string{
		"configuration": "of the daemon", "fuse device": "", "disk room": "", "daemon": "online", "tmpfs inodes": "",
	} {
		if results[check] != "ok" || !strings.Contains(reasons[check], want) {
			t.Errorf("%s: %s, %s", check, results[check], reasons[check])
		}
	}

	files := bundleOf(t, d.Dir)
	for name, want := range map[string]string{
		"version.txt": "kvfs ", "config.yaml": "the configuration of the daemon", "doctor.txt": "CHECK", "doctor.json": "checks",
		"kernel.txt": "Linux", "limits.txt": "Max", "mounts.txt": d.Dir, "status.json": `"stored_blocks": 1`, "metrics.txt": "kvfs_",
		"jobs.json": "{", "daemon-limits.txt": "Max", "daemon-process.txt": "VmRSS", "goroutines.txt": "goroutine 1 ", "heap.pb.gz": "\x1f\x8b",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q:\n%s", name, want, cut(files[name]))
		}
	}

	d.Kill()
	results, reasons = doctorOf(t, d.Dir)
	if results["daemon"] != "fail" || !strings.Contains(reasons["daemon"], "is dead") || results["mounts"] != "fail" {
		t.Errorf("killed: daemon %s, %s; mounts %s, %s", results["daemon"], reasons["daemon"], results["mounts"], reasons["mounts"])
	}
	files = bundleOf(t, d.Dir)
	for _, want := range []string{"status.json: ", "metrics.txt: ", "daemon: its process is dead"} {
		if !strings.Contains(files["errors.txt"], want) {
			t.Errorf("killed: no %q in %q", want, files["errors.txt"])
		}
	}
	if files["version.txt"] == "" || files["doctor.txt"] == "" || files["status.json"] != "" {
		t.Errorf("killed: version %q, status %q", files["version.txt"], files["status.json"])
	}
	d.Restart()
}
