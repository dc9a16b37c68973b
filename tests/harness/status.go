package harness

import (
	"encoding/json"
	"os"
	"testing"
)

// Status is what .kvfs/status says.
type Status struct {
	Version string      `json:"version"`
	Mount   MountStatus `json:"mount"`
	Tiers   []TierStatus

	Secondaries []SecondaryStatus `json:"secondaries"`

	Raw map[string]any `json:"-"` // all of it
}

// MountStatus says how the kernel serves open files.
type MountStatus struct {
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
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		d.tb.Fatalf("status: %v\n%s", err, b)
	}
	if err := json.Unmarshal(b, &s.Raw); err != nil {
		d.tb.Fatalf("status: %v\n%s", err, b)
	}
	return s
}
