package main

import (
	"encoding/json"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
)

const duExample = `{"schema": 2,
  "tiers": [{"name": "memory", "type": "memory", "used_bytes": 3145728, "capacity_bytes": 4194304, "pinned_bytes": 4096, "blocks": 7},
    {"name": "disk", "type": "disk", "used_bytes": 1048576, "capacity_bytes": 1073741824, "blocks": 2},
    {"name": "peer", "type": "peer", "used_bytes": 10, "capacity_bytes": 20, "blocks": 30}],
  "groups": [{"name": "b\\xff", "used_bytes": 0}, {"name": "", "used_bytes": 4096}, {"name": "a", "used_bytes": 0},
    {"name": "\u001b[2J", "used_bytes": 2097152, "quota_bytes": 8388608, "block_bytes": 65536, "pinned": true}]}`

// TestDu pins the tables, and that --json has the same.
func TestDu(t *testing.T) {
	dir := statusDir(t, duExample)
	want := `GROUP    MEMORY   QUOTA    BLOCK SIZE  NOTE
\x1b[2J  2.0 MiB  8.0 MiB  64.0 KiB    pinned
./       4.0 KiB  -        -           -
a        0 B      -        -           -
b\xff    0 B      -        -           -
total    2.0 MiB  -        -           -

TIER    USED     CAPACITY  PINNED   BLOCKS
memory  3.0 MiB  4.0 MiB   4.0 KiB  7
disk    1.0 MiB  1.0 GiB   0 B      2
peer    10 B     20 B      0 B      30
total   4.0 MiB  -         -        9
`
	if code, out, errs := runCLI("du", dir); code != exit.OK || out != want {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant\n%s", code, errs, out, want)
	}
	code, out, errs := runCLI("du", "--json", dir)
	var u watch.Usage
	if err := json.Unmarshal([]byte(out), &u); err != nil || code != exit.OK {
		t.Fatalf("exit code %d, %s, %v", code, errs, err)
	}
	if len(u.Groups) != 4 || u.Groups[0].MemoryBytes != 2<<20 || !u.Groups[0].Pinned || u.Groups[1].Name != "" ||
		len(u.Tiers) != 3 || u.Tiers[2].Blocks != 30 || u.Total != (watch.Total{UsedBytes: 4 << 20, Blocks: 9}) {
		t.Errorf("got %+v", u)
	}
	if code, _, errs := runCLI("du", t.TempDir()); code != exit.NotMount {
		t.Errorf("no mount: exit code %d, %s", code, errs)
	}
}
