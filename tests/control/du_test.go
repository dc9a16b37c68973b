package control

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDuGroups shows that kvfs du tells what each group has in memory and on the SSD, to users who may know it; and that
// others see memory alone, and why.
func TestDuGroups(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	d := diskMount(t, harness.Options{Flags: admitted})
	var cold []string
	for i := range 3 {
		cold = append(cold, fmt.Sprint("cold/", i))
	}
	coldBlocks(t, d, 2*mib, append(cold, "both/0", "top")...)
	wantBytes(t, d.Path("both/0"), pattern("both/0", 2*mib))
	must(t, "mkdir", os.MkdirAll(d.Path("empty"), 0o755))

	want := map[string][2]string{"cold ": {"0 B", "6.0 MiB"}, "both ": {"2.0 MiB", "2.0 MiB"}, "./ ": {"0 B", "2.0 MiB"}, "total": {"2.0 MiB", "10.0 MiB"}}
	table, _, _ := strings.Cut(kvfs(t, "du", d.Dir), "\n\n")
	wantLine(t, table, "GROUP", "MEMORY", "DISK", "QUOTA")
	for group, in := range want {
		wantLine(t, table, group, in[0]+" ", in[1]+" ")
	}
	out, stderr, code := harness.KvfsAs(t, engineUser, "du", "--json", d.Dir)
	var u struct {
		Groups []struct {
			Name   string
			Memory int64 `json:"memory_bytes"`
			Lower  map[string]struct{ Blocks, Bytes int64 }
		}
	}
	if err := json.Unmarshal([]byte(out), &u); err != nil || code != 0 || stderr != "" {
		t.Fatalf("as an engine: exit code %d, %s, %v", code, stderr, err)
	}
	for _, g := range u.Groups {
		if g.Name == "cold" && (g.Lower["disk"].Blocks != 3 || g.Lower["disk"].Bytes != 6*mib) {
			t.Errorf("as an engine: %+v", g)
		}
	}
	out, stderr, code = harness.KvfsAs(t, stranger, "du", d.Dir)
	if code != 0 || !strings.Contains(stderr, "groups in memory alone") || strings.Contains(out, "DISK") {
		t.Errorf("as a stranger: exit code %d, %s%s", code, stderr, out)
	}
}
