package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// Status is the content of .kvfs/status.
type Status struct {
	Schema  int         `json:"schema"`
	Version string      `json:"version"`
	PID     int         `json:"pid"`
	Mount   MountStatus `json:"mount"`
	Store   struct {    // of an owner
		Socket string        `json:"socket"`
		Mounts []MountStatus `json:"mounts"`
	} `json:"store"`
	Tiers []TierStatus `json:"tiers"`

	Counters    StatusCounters    `json:"counters"`
	Reads       StatusReads       `json:"reads"`
	Secondaries []SecondaryStatus `json:"secondaries"`

	Raw map[string]any `json:"-"` // all of it
}

// StatusCounters are the counters of the engine.
type StatusCounters struct {
	Evicted  int64 `json:"evicted_blocks"`
	Lost     int64 `json:"lost_blocks"`
	NoSpace  int64 `json:"no_space_writes"`
	Poisoned int64 `json:"poisoned_commits"`
	Adopted  int64 `json:"adopted_blocks"`
}

// StatusReads counts the blocks that readers asked for, by the tier that had the block.
type StatusReads struct {
	MemoryHits  int64            `json:"memory_hits"`
	DiskHits    int64            `json:"disk_hits"`
	Misses      int64            `json:"misses"`
	Served      int64            `json:"served_blocks"`
	Failed      int64            `json:"failed_blocks"`
	BytesByTier map[string]int64 `json:"served_bytes_by_tier"`
}

// MountStatus says which process answers a mount, and how the kernel serves open files.
type MountStatus struct {
	Dir       string `json:"dir"`
	Mode      string `json:"mode"`
	State     string `json:"state"`
	PID       int    `json:"pid"`
	OwnerPID  int    `json:"owner_pid"`
	Epoch     int    `json:"epoch"`
	Takeover  string `json:"takeover"`   // the socket for a takeover
	ReadPath  string `json:"read_path"`  // "passthrough", "splice", ...
	WritePath string `json:"write_path"` // "passthrough", "daemon", ...
	Tested    bool   `json:"tested"`     // the read path, at the start
}

// TierStatus is one tier, the primary first.
type TierStatus struct {
	Name          string `json:"name"`
	Type          string `json:"type"`
	CapacityBytes int64  `json:"capacity_bytes"`
	UsedBytes     int64  `json:"used_bytes"`
	PinnedBytes   int64  `json:"pinned_bytes"`
	Blocks        int64  `json:"blocks"`
	State         string `json:"state"`
	Reason        string `json:"reason"`
}

// SecondaryStatus is one tier below memory: its own figures, and the engine's
// totals since the daemon started.
type SecondaryStatus struct {
	Name              string `json:"name"`
	CapacityBytes     int64  `json:"capacity_bytes"`
	UsedBytes         int64  `json:"used_bytes"`
	Blocks            int64  `json:"blocks"`
	State             string `json:"state"`
	Reason            string `json:"reason"`
	StoredBytes       uint64 `json:"stored_bytes"`
	LoadedBytes       uint64 `json:"loaded_bytes"`
	Stored            uint64 `json:"stored_blocks"`
	Loaded            uint64 `json:"loaded_blocks"`
	Evicted           uint64 `json:"evicted_blocks"`
	Corrupt           uint64 `json:"corrupt_blocks"`
	IOErrors          uint64 `json:"io_errors"`
	SkippedNoSpace    uint64 `json:"skipped_no_space_blocks"`
	SkippedBudget     uint64 `json:"skipped_budget_blocks"`
	QueuedBlocks      int64  `json:"queued_blocks"`
	QueuedBytes       int64  `json:"queued_bytes"`
	MissedBlocks      int64  `json:"missed_blocks"`
	Cascaded          uint64 `json:"cascaded_blocks"`
	CascadedBytes     uint64 `json:"cascaded_bytes"`
	CascadeDropped    uint64 `json:"cascade_dropped_blocks"`
	CascadeSkipped    uint64 `json:"cascade_skipped_blocks"`
	CascadeFailed     uint64 `json:"cascade_failed_blocks"`
	AdmissionRejected uint64 `json:"cascade_not_admitted_blocks"`
	Promoted          uint64 `json:"promoted_blocks"`
	PromotedBytes     uint64 `json:"promoted_bytes"`
	PromoteAbsent     uint64 `json:"promotion_absent_blocks"`
	PromoteCorrupt    uint64 `json:"promotion_corrupt_blocks"`
	PromoteFailed     uint64 `json:"promotion_failed_blocks"`
	PromoteTimeouts   uint64 `json:"promotion_timeouts"`
	Batches           uint64 `json:"promotion_batches"`
}

// Tier returns the tier of that name, or fails the test.
func (s Status) Tier(tb testing.TB, name string) TierStatus {
	tb.Helper()
	for _, t := range s.Tiers {
		if t.Name == name {
			return t
		}
	}
	tb.Fatalf("status has no tier %q: %+v", name, s.Tiers)
	return TierStatus{}
}

// Secondary returns the secondary tier of that name, or fails the test.
func (s Status) Secondary(tb testing.TB, name string) SecondaryStatus {
	tb.Helper()
	for _, t := range s.Secondaries {
		if t.Name == name {
			return t
		}
	}
	tb.Fatalf("status has no secondary tier %q: %+v", name, s.Secondaries)
	return SecondaryStatus{}
}

// Status reads .kvfs/status.
func (d *Daemon) Status() Status {
	d.tb.Helper()
	KvfsOnly(d.tb, "no control directory")
	b, err := os.ReadFile(d.Path(".kvfs", "status"))
	if err != nil {
		d.tb.Fatal(err)
	}
	return parseStatus(d.tb, b)
}

// StatusOf returns the output of kvfs status with these arguments.
func StatusOf(tb testing.TB, args ...string) Status {
	tb.Helper()
	out, stderr, code := Kvfs(tb, append([]string{"status", "--json"}, args...)...)
	if code != 0 {
		tb.Fatalf("kvfs status %q: exit code %d, %s", args, code, stderr)
	}
	CheckStatus(tb, []byte(out))
	return parseStatus(tb, []byte(out))
}

// CheckStatus fails the test unless text is a status document: JSON, in characters that a terminal only shows, with
// no field that the list of the schema lacks, and each of its type.
func CheckStatus(tb testing.TB, text []byte) {
	tb.Helper()
	schema, err := os.ReadFile(filepath.Join(Root(tb), "cmd/kvfs/status/testdata/schema.txt"))
	var doc any
	if err := errors.Join(err, json.Unmarshal(text, &doc)); err != nil {
		tb.Fatalf("status: %v\n%s", err, text)
	}
	kinds := map[string]string{}
	for line := range strings.Lines(string(schema)) {
		path, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		kinds[path] = kind
	}
	if i := bytes.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		tb.Errorf("status: not escaped: %q", text[i:min(i+9, len(text))])
	}
	checkFields(tb, kinds, "", doc)
}

// checkFields checks the part of a status document at path. kinds are the types of all fields.
func checkFields(tb testing.TB, kinds map[string]string, path string, v any) {
	tb.Helper()
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			at := strings.TrimPrefix(path+"."+name, ".")
			if kinds[path+"{}"] != "" {
				at = path + "{}"
			}
			checkFields(tb, kinds, at, inner)
		}
	case []any:
		for _, inner := range v {
			checkFields(tb, kinds, path+"[]", inner)
		}
	case nil: // an empty list
	default:
		fits := map[string]string{"string": "string", "time": "string", "boolean": "bool", "integer": "float64", "number": "float64"}
		if kind := kinds[path]; fits[kind] != fmt.Sprintf("%T", v) {
			tb.Errorf("status: %s is %v, and of type %q in the list", path, v, kind)
		}
	}
}

func parseStatus(tb testing.TB, text []byte) (s Status) {
	tb.Helper()
	if err := errors.Join(json.Unmarshal(text, &s), json.Unmarshal(text, &s.Raw)); err != nil {
		tb.Fatalf("status: %v\n%s", err, text)
	}
	return s
}
