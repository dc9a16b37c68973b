package status

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/nic"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/lane"
)

// TestStatusOfSecondaries pins the lines of the tiers below memory, and shows that
// the keys are those of lane.Stats, and that absent ones do no harm.
func TestStatusOfSecondaries(t *testing.T) {
	ssd := lane.Stats{
		Name: "disk", QueuedBlocks: 1, QueuedBytes: 4 << 20, QueueLimitBytes: 1 << 30,
		Cascaded: 12, CascadedBytes: 48 << 20, CascadeDropped: 2, AdmissionRejected: 5,
		Promoted: 1, PromotedBytes: 4 << 20, PromoteCorrupt: 1, PromoteTimeouts: 3,
	}
	ssd.Detail = &disk.Detail{
		BudgetBytes: 2 << 40, WrittenTodayBytes: 1 << 30, ScrubbedBlocks: 9, ScrubbedBytes: 36 << 20, ScrubbedBad: 1,
		Devices: []disk.DeviceDetail{
			{Dir: "/mnt/a", State: "online", UsedBytes: 3 << 20, CapacityBytes: 1 << 30, Blocks: 7, Engine: "io_uring"},
			{Dir: "/mnt/b", State: "offline", Reason: "EIO"},
		},
	}
	sparse := map[string]any{"name": "disk", "detail": map[string]any{"devices": []any{map[string]any{"dir": "/mnt/c", "more": 1}}}}
	text, err := json.Marshal(map[string]any{
		"schema":      Schema,
		"tiers":       []any{map[string]any{"name": "memory"}, map[string]any{"name": "disk", "type": "disk", "state": "degraded"}},
		"secondaries": []any{ssd, sparse, map[string]any{"name": "peer", "detail": map[string]any{"devices": 7}}, map[string]any{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `
TIER    TYPE  STATE     USED  CAPACITY  PINNED  BLOCKS
memory  -     -         0 B   0 B       0 B     0
disk    disk  degraded  0 B   0 B       0 B     0

disk
  cascade queue  1 block, 4.0 MiB of 1.0 GiB
  cascaded       12 blocks, 48.0 MiB (queue full 2, not admitted 5)
  promoted       1 block, 4.0 MiB (corrupt 1, timed out 3)
  written today  1.0 GiB of 2.0 TiB
  scrubbed       9 blocks, 36.0 MiB (bad 1)

  DEVICE  STATE          USED     CAPACITY  BLOCKS  ENGINE
  /mnt/a  online         3.0 MiB  1.0 GiB   7       io_uring
  /mnt/b  offline (EIO)  0 B      0 B       0       -

disk
  cascade queue  0 blocks, 0 B of 0 B
  cascaded       0 blocks, 0 B
  promoted       0 blocks, 0 B
  written today  0 B
  scrubbed       0 blocks, 0 B

  DEVICE  STATE  USED  CAPACITY  BLOCKS  ENGINE
  /mnt/c  -      0 B   0 B       0       -

peer
  cascade queue  0 blocks, 0 B of 0 B
  cascaded       0 blocks, 0 B
  promoted       0 blocks, 0 B

-
  cascade queue  0 blocks, 0 B of 0 B
  cascaded       0 blocks, 0 B
  promoted       0 blocks, 0 B
`
	var out strings.Builder
	if err := Print(&out, text); err != nil || !strings.HasSuffix(out.String(), want) {
		t.Errorf("%v, got\n%s\nwant at the end\n%s", err, out.String(), want)
	}
}

// TestPrintStoreStatus pins the text for people.
func TestPrintStoreStatus(t *testing.T) {
	var out strings.Builder
	text := `{"schema":2,"version":"v1","pid":7,"store":{"socket":"/s","mounts":[{"dir":"/mnt/a","pid":8,"state":"serving","read_path":"passthrough","write_path":"daemon"}]},
		"tiers":[{"name":"memory","type":"memory","state":"online"}]}`
	if err := Print(&out, []byte(text)); err != nil {
		t.Fatal(err)
	}
	want := `version  v1
socket   /s
pid      7
uptime   0s

MOUNT    PID  STATE    READ PATH    WRITE PATH
/mnt/a   8    serving  passthrough  daemon

TIER    TYPE    STATE   USED  CAPACITY  PINNED  BLOCKS
memory  memory  online  0 B   0 B       0 B     0
`
	if strings.ReplaceAll(out.String(), " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestStatusOfRDMA pins the lines of RDMA, and that a daemon that knows none has none.
func TestStatusOfRDMA(t *testing.T) {
	members := []cluster.Member{
		{Name: "a", Self: true, State: "alive"}, {Name: "b", State: "alive", Path: "rdma"},
		{Name: "c", State: "alive", Path: "tcp", PathReason: "no RDMA there"}, {Name: "d", State: "left"},
		{Name: "e", State: "alive", Path: "rdma", PathReason: "rail 1"},
	}
	plan := &nic.Plan{Rails: []nic.Rail{{Device: nic.Device{Name: "mlx5_1"}, GPUs: []int{0, 3}, Path: "PIX"}, {Device: nic.Device{Name: "mlx5_0"}}}}
	for _, tc := range []struct {
		rdma *rails.State
		want string // without the other lines
	}{
		{nil, ""},
		{&rails.State{Transport: "tcp"}, ""},
		{&rails.State{Transport: "auto", Error: "no such RDMA device"}, "  rdma      none: no such RDMA device\n"},
		{&rails.State{Transport: "auto", Provider: "libfabric 2.1 verbs", Plan: plan, Stats: &fabric.Stats{ReadBytes: 3 << 20, Stalls: 1}},
			"  rdma      libfabric 2.1 verbs, 2 of 3 peers, 3.0 MiB read (stalls 1)\n  rails     mlx5_1 for GPU 0, 3 (PIX); mlx5_0\n  not rdma  peer c: no RDMA there\n  in part   peer e: rail 1\n"},
	} {
		text, err := json.Marshal(map[string]any{"schema": Schema, "cluster": map[string]any{"members": members, "rdma": tc.rdma}})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := Print(&out, text); err != nil {
			t.Error(err)
		}
		var got string
		for line := range strings.Lines(out.String()) {
			for _, begin := range []string{"  rdma ", "  rails ", "  not rdma ", "  in part "} {
				if strings.HasPrefix(line, begin) {
					got += line
				}
			}
		}
		if got != tc.want {
			t.Errorf("got\n%swant\n%s", got, tc.want)
		}
	}
}

// TestText shows that whatever names and reasons a document has, it is JSON of characters that a terminal only shows,
// and that the names come back.
func TestText(t *testing.T) {
	odd := "<b>&\x1b[2J\u009b31m\x7f\u202e\U000e0001\r\n\"\\é漢\u2028"
	doc := &Document{
		Version: odd, Mount: Mount{Dir: odd}, Groups: []Group{{Name: odd}}, Tiers: []Tier{{Name: odd, Reason: odd}},
		Cluster: &Cluster{Members: []cluster.Member{{Name: odd, Zone: odd, LastError: odd}}, Rejected: map[string]uint64{odd: 1}},
	}
	text := doc.Text()
	if i := bytes.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) || r == '<' || r == '>' || r == '&' }); i >= 0 {
		t.Errorf("not escaped: %q", text[i:min(i+9, len(text))])
	}
	if !bytes.HasPrefix(text, []byte("{\n  \"schema\": ")) || !bytes.Contains(text, []byte("é漢")) {
		t.Errorf("got %s", text)
	}
	if got, err := Parse(text); err != nil || !reflect.DeepEqual(got, doc) {
		t.Errorf("%v, got %+v", err, got)
	}
}
