package harness

import (
	"encoding/json"
	"os"
)

// Status is what .kvfs/status says.
type Status struct {
	Version string      `json:"version"`
	Mount   MountStatus `json:"mount"`
	Tiers   []TierStatus

	Raw map[string]any `json:"-"` // all of it
}

// MountStatus says how the kernel serves open files.
type MountStatus struct {
	ReadPath  string `json:"read_path"`  // "passthrough", "splice", ...
	WritePath string `json:"write_path"` // "passthrough", "daemon", ...
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
