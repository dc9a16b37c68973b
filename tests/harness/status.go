package harness

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
)

// Status is the content of .kvfs/status.
type Status struct {
	Version string      `json:"version"`
	PID     int         `json:"pid"`
	Mount   MountStatus `json:"mount"`
	Store   struct {    // of an owner
		Socket string        `json:"socket"`
		Mounts []MountStatus `json:"mounts"`
	} `json:"store"`
	Tiers []TierStatus

	Counters    StatusCounters    `json:"counters"`
	Summary     StatusSummary     `json:"summary"`
	Secondaries []SecondaryStatus `json:"secondaries"`

	Raw map[string]any `json:"-"` // all of it
}

// StatusCounters are the counters of the engine.
type StatusCounters struct {
	Evicted, Lost, NoSpace, Poisoned, Adopted int64
}

// StatusSummary counts the opens that a daemon has served, by the tier that had the block.
type StatusSummary struct {
	MemoryKeys, DiskKeys, FailedKeys int64
	BytesByTier                      map[string]int64
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
// totals since the daemon started. The fields have the names of the document.
type SecondaryStatus struct {
	Name                             string
	CapacityBytes, UsedBytes         int64
	Blocks                           int64
	State, Reason                    string
	StoredBytes, LoadedBytes         uint64
	Stored, Loaded                   uint64
	Evicted, Corrupt, IOErrors       uint64
	SkippedNoSpace, SkippedBudget    uint64
	QueuedBlocks, QueuedBytes        int64
	Cascaded, CascadedBytes          uint64
	CascadeDropped, CascadeSkipped   uint64
	CascadeFailed, AdmissionRejected uint64
	Promoted, PromotedBytes          uint64
	PromoteAbsent, PromoteCorrupt    uint64
	PromoteFailed, PromoteTimeouts   uint64
	Batches                          uint64
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
	return parseStatus(tb, []byte(out))
}

func parseStatus(tb testing.TB, text []byte) (s Status) {
	tb.Helper()
	if err := errors.Join(json.Unmarshal(text, &s), json.Unmarshal(text, &s.Raw)); err != nil {
		tb.Fatalf("status: %v\n%s", err, text)
	}
	return s
}
