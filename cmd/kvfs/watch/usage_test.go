package watch

import (
	"bytes"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// TestUsageOfLower pins the columns of tiers below memory: those that the daemon tells of, in the order of the tiers.
func TestUsageOfLower(t *testing.T) {
	doc := &status.Document{
		Groups: []status.Group{{Name: "a", UsedBytes: 1 << 20}, {Name: "b"}},
		Tiers:  []status.Tier{{Name: "memory"}, {Name: "fast"}, {Name: "disk"}, {Name: "peer", Type: "peer"}},
	}
	low := &status.Lower{Groups: map[string]map[string]status.Share{
		"a": {"fast": {Blocks: 1, Bytes: 2 << 20}, "disk": {Blocks: 2, Bytes: 4 << 20}}, "b": {"fast": {}, "disk": {Blocks: 1, Bytes: 1 << 20}},
		"gone": {"disk": {Blocks: 1, Bytes: 1}},
	}}
	var w bytes.Buffer
	if err := UsageOf(doc, low).Print(&w); err != nil {
		t.Fatal(err)
	}
	const want = `GROUP  MEMORY   FAST     DISK     QUOTA  BLOCK SIZE  NOTE
a      1.0 MiB  2.0 MiB  4.0 MiB  -      -           -
b      0 B      0 B      1.0 MiB  -      -           -
total  1.0 MiB  2.0 MiB  5.0 MiB  -      -           -
`
	if got, _, _ := bytes.Cut(w.Bytes(), []byte("\nTIER")); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
