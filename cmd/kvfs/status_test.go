package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// statusExample has a field that this version does not know, and a tier that
// lacks most of what it does.
const statusExample = `{
  "schema": 2, "version": "v1.2.3", "pid": 42, "uptime_seconds": 3725.4, "future": {"x": [1]},
  "mount": {"dir": "/mnt/kv", "read_path": "passthrough", "write_path": "daemon"},
  "tiers": [
    {"name": "memory", "type": "mem", "state": "online", "used_bytes": 1610612736, "capacity_bytes": 4294967296, "pinned_bytes": 1024, "blocks": 96, "more": 1},
    {"name": "ssd", "state": "offline", "reason": "too many errors"}
  ]
}`

// statusDir makes a directory that looks like a mount.
func statusDir(t *testing.T, text string) string {
	t.Helper()
	return filepath.Dir(filepath.Dir(writeTemp(t, ".kvfs/status", text)))
}

// TestStatus pins the table, and that --json passes the document on as it is.
func TestStatus(t *testing.T) {
	dir := statusDir(t, statusExample)
	want := `version     v1.2.3
mount       /mnt/kv
read path   passthrough
write path  daemon
pid         42
uptime      1h2m5s

TIER    TYPE  STATE                      USED     CAPACITY  PINNED   BLOCKS
memory  mem   online                     1.5 GiB  4.0 GiB   1.0 KiB  96
ssd     -     offline (too many errors)  0 B      0 B       0 B      0
`
	if code, out, errs := runCLI("status", dir); code != exit.OK || out != want {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant\n%s", code, errs, out, want)
	}
	if code, out, _ := runCLI("status", "--json", dir); code != exit.OK || out != statusExample+"\n" {
		t.Errorf("exit code %d, got\n%s", code, out)
	}
	if code, out, _ := runCLI("status", statusDir(t, "{}")); code != exit.OK || !strings.Contains(out, "version     -\n") {
		t.Errorf("empty document: exit code %d, got\n%s", code, out)
	}
	if code, _, errs := runCLI("status", statusDir(t, "no json")); code != exit.Runtime || !strings.HasPrefix(errs, "kvfs: status of the daemon: ") {
		t.Errorf("exit code %d, stderr %q", code, errs)
	}
}

// TestStatusOfOlder shows what commands say of a daemon from before the numbers of the document: of what is still
// called the same, the truth, and of the rest nothing.
func TestStatusOfOlder(t *testing.T) {
	cleanEnv(t)
	text, err := os.ReadFile("status/testdata/unnumbered.json") // as kvfs wrote it then
	must(t, err)
	dir := statusDir(t, string(text))
	want := `version     v0.1.0
mount       /mnt/kv
read path   passthrough
write path  passthrough
pid         42
uptime      1m2s

TIER    TYPE    STATE   USED     CAPACITY   PINNED  BLOCKS
memory  memory  online  4.0 KiB  64.0 MiB   0 B     1
disk    disk    online  4.0 KiB  256.0 MiB  0 B     1
peer    peer    online  0 B      0 B        0 B     0

The daemon has another version. --json shows all that it tells.
`
	if code, out, errs := runCLI("status", dir); code != exit.OK || out != want {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant\n%s", code, errs, out, want)
	}
	if code, out, errs := runCLI("doctor", "rdma", dir); code != exit.Runtime || !strings.Contains(out+errs, "peer b: no RDMA here") {
		t.Errorf("doctor: exit code %d, %s\n%s", code, errs, out)
	}
	s, err := status.Parse(text)
	if m := &s.Mount; err != nil || s.Schema != 0 || m.PID != 42 || m.EndsWith != 41 || m.Mode != config.ModeEmbedded || m.Takeover == "" || s.Events == nil || s.Events.Next == 0 {
		t.Errorf("%v, got %+v, %+v", err, *m, s.Events)
	}
}

// TestStatusOfNobody shows what kvfs status says where no owner serves.
func TestStatusOfNobody(t *testing.T) {
	cleanEnv(t)
	path := filepath.Join(t.TempDir(), "s")
	code, _, errs := runCLI("status", "--store", path)
	if code != exit.NotMount || errs != "kvfs: no owner is serving at "+path+"\n" {
		t.Errorf("exit code %d, %q", code, errs)
	}
	t.Setenv("KVFS_STORE_SOCKET", path)
	if code, _, errs := runCLI("status", "--store"); code != exit.NotMount || errs != "kvfs: no owner is serving at "+path+"\n" {
		t.Errorf("the default: exit code %d, %q", code, errs)
	}
	if code, _, _ := runCLI("status", "--store", "a", "b"); code != exit.Usage {
		t.Errorf("two sockets: exit code %d", code)
	}
}
