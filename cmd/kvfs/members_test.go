package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

const membersExample = `[
 {"name": "a", "state": "alive", "self": true, "gossip_addr": "10.0.0.1:7946", "version": "v2", "total_bytes": 2147483648, "free_bytes": 1073741824, "blocks": 7, "features": ["get","store"], "breaker": "closed"},
 {"name": "b", "state": "alive", "gossip_addr": "10.0.0.2:7946", "zone": "r1", "version": "v1", "missing": ["store"], "feed": "following", "fetched_bytes": 4096, "breaker": "open", "failures": 3, "last_error": "peer unavailable"},
 {"name": "c", "state": "refused", "reason": "lacks store", "gossip_addr": "10.0.0.3:7946", "since": "2026-01-02T03:04:05Z"}
]`

// TestMembers pins the table, and what status says of the cluster: what was requested and
// what is in effect (D9).
func TestMembers(t *testing.T) {
	dir := filepath.Dir(filepath.Dir(writeTemp(t, ".kvfs/members", membersExample)))
	want := `NAME  STATE                  ADDRESS        ZONE  VERSION  FREE     CAPACITY  BLOCKS  FEED       FETCHED  NOTE
a     alive                  10.0.0.1:7946  -     v2       1.0 GiB  2.0 GiB   7       -          0 B      this node
b     alive                  10.0.0.2:7946  r1    v1       0 B      0 B       0       following  4.0 KiB  served without store; breaker open; 3 failures, the last: peer unavailable
c     refused (lacks store)  10.0.0.3:7946  -     -        0 B      0 B       0       -          0 B      since 2026-01-02T03:04:05Z
`
	if code, out, errs := runCLI("members", dir); code != exit.OK || out != want {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant\n%s", code, errs, out, want)
	}
	if code, out, _ := runCLI("members", "--json", dir); code != exit.OK || out != membersExample+"\n" {
		t.Errorf("--json: exit code %d, got\n%s", code, out)
	}
	alone := statusDir(t, statusExample)
	if code, _, errs := runCLI("members", alone); code != exit.Runtime || !strings.Contains(errs, "without --bind") {
		t.Errorf("no peers: exit code %d, %q", code, errs)
	}
	if code, _, errs := runCLI("members", t.TempDir()); code != exit.NotMount || !strings.Contains(errs, "is not a kvfs mount") {
		t.Errorf("no mount: exit code %d, %q", code, errs)
	}
	status := statusDir(t, `{"schema": 2, "cluster": {"members": `+membersExample+`, "node": {"index": {"entries": 12, "memory_bytes": 384, "graves": 2}},
		"rejected": {"gossip": 3, "bulk": 4}, "requested": ["get", "store"], "required": ["get"], "warning": "several addresses"}}`)
	wantStatus := `
cluster
  members   2 alive (refused 1)
  index     12 entries, 384 B; 2 graves
  features  get, store (required: get)
  without   store: peer b, version v1
  rejected  7 from strangers
  warning   several addresses
`
	if code, out, errs := runCLI("status", status); code != exit.OK || !strings.HasSuffix(out, wantStatus) {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant at the end\n%s", code, errs, out, wantStatus)
	}
}
