package disk

import (
	"cmp"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Detail is driver.Stats.Detail of this tier.
type Detail struct {
	BudgetBytes       int64 `json:"budget_bytes,omitempty" help:"'disk.daily_write_budget'; 0: no limit"`
	WrittenTodayBytes int64 `json:"written_today_bytes" help:"bytes written since the beginning of the day (UTC), restarts included"`

	ScrubbedBlocks uint64 `json:"scrubbed_blocks" help:"blocks that the scrubber has read"`
	ScrubbedBytes  uint64 `json:"scrubbed_bytes" help:"bytes of these blocks"`
	ScrubbedBad    uint64 `json:"scrubbed_bad_blocks" help:"bad copies that the scrubber has found"`
	// LastScrubPass is when the scrubber last finished a pass over a device, RFC 3339.
	LastScrubPass string `json:"last_scrub_pass,omitempty" help:"when the scrubber last finished a directory" kind:"time"`
	Syncs         uint64 `json:"syncs" help:"group syncs"`
	// MovedBlocks were moved to another slot, so that their slab could go to another block size.
	MovedBlocks uint64 `json:"moved_blocks" help:"blocks moved within the SSD to make [room for another block size](sizing.md#several-block-sizes-on-one-ssd)"`

	Devices []DeviceDetail `json:"devices"`
}

// DeviceDetail is the status of one device.
type DeviceDetail struct {
	Dir               string         `json:"dir" help:"the directory"`
	State             string         `json:"state" help:"'online' or 'offline'"`
	Reason            string         `json:"reason,omitempty" help:"why it is offline, or full"`
	CapacityBytes     int64          `json:"capacity_bytes" help:"bytes for blocks"`
	UsedBytes         int64          `json:"used_bytes" help:"bytes of slots that hold blocks"`
	SlabFileBytes     int64          `json:"slab_file_bytes" help:"size of the slab files"`
	Blocks            int64          `json:"blocks" help:"blocks in the directory"`
	Engine            string         `json:"engine" help:"'io_uring' or 'pread'"`
	FileSystem        string         `json:"filesystem" help:"type of the file system"`
	DirectIO          bool           `json:"direct_io" help:"reads and writes bypass the page cache; false: direct I/O is only a hint"`
	Slabs             int            `json:"slabs" help:"slabs in use"`
	SetAside          int            `json:"slabs_set_aside,omitempty" help:"damaged slabs"`
	QuarantinedSlots  int64          `json:"quarantined_slots,omitempty" help:"slots not used any more because their medium is bad"`
	WrittenTodayBytes int64          `json:"written_today_bytes" help:"as in the tier"`
	RecoverySeconds   float64        `json:"recovery_seconds" help:"how long the start read and checked the directory"`
	Classes           []ClassDetail  `json:"classes"`
	IO                directio.Stats `json:"io"`
}

// ClassDetail is one size class of a device.
type ClassDetail struct {
	SlotBytes int64 `json:"slot_bytes" help:"size of the slots of a size class"`
	Slots     int   `json:"slots" help:"slots of the class"`
	Used      int   `json:"used_slots" help:"slots that hold blocks"`
}

// Stats returns totals, with a Detail as Detail.
func (t *Tier) Stats() driver.Stats {
	c := &t.counters
	s := driver.Stats{
		State:       "online",
		StoredBytes: c.storedBytes.Load(), LoadedBytes: c.loadedBytes.Load(),
		Stored: c.stored.Load(), Loaded: c.loaded.Load(),
		Evicted: c.evicted.Load(), Corrupt: c.corrupt.Load(), IOErrors: c.ioErrors.Load(),
		SkippedNoSpace: c.noSpace.Load(), SkippedBudget: c.budget.Load(),
	}
	detail := &Detail{
		BudgetBytes:    t.opts.DailyWriteBudgetBytes,
		ScrubbedBlocks: c.scrubbedBlocks.Load(), ScrubbedBytes: c.scrubbedBytes.Load(), ScrubbedBad: c.scrubbedBad.Load(),
		Syncs: c.syncs.Load(), MovedBlocks: c.moved.Load(),
	}
	if at := c.lastScrubPass.Load(); at != 0 {
		detail.LastScrubPass = time.Unix(at, 0).UTC().Format(time.RFC3339)
	}
	t.mu.Lock()
	detail.WrittenTodayBytes = t.writtenLocked()
	s.PinnedBytes = t.mu.slots.Pinned()
	closed := t.mu.closing
	for _, d := range t.devices {
		detail.Devices = append(detail.Devices, d.detailLocked())
	}
	t.mu.Unlock()
	offline := 0
	for i := range detail.Devices {
		d := &detail.Devices[i]
		d.Engine, d.IO = t.devices[i].port.Engine.Name(), t.devices[i].port.Engine.Stats()
		s.CapacityBytes += d.CapacityBytes
		s.UsedBytes += d.UsedBytes
		s.Blocks += d.Blocks
		if d.State != "online" {
			offline++
		}
		if d.Reason != "" && s.Reason == "" {
			s.Reason = d.Dir + ": " + d.Reason
		}
	}
	switch {
	case closed:
		s.State, s.Reason = "offline", "closed"
	case offline == len(detail.Devices):
		s.State = "offline"
	case offline > 0:
		s.State = "degraded"
	}
	s.Detail = detail
	return s
}

// detailLocked returns the Detail. It needs Tier.mu.
func (d *device) detailLocked() DeviceDetail {
	state, reason := d.port.Status()
	u := d.mu.space.Usage()
	out := DeviceDetail{
		Dir: d.dir, State: state, Reason: cmp.Or(reason, u.FullReason), CapacityBytes: d.fits,
		UsedBytes: u.UsedBytes, SlabFileBytes: u.FileBytes, Blocks: u.Blocks,
		Slabs: u.Slabs, SetAside: u.SetAside, QuarantinedSlots: u.Quarantined,
		FileSystem: d.root.Direct.FileSystem, DirectIO: d.root.Direct.Direct, WrittenTodayBytes: d.mu.written,
		RecoverySeconds: d.recoveredIn.Seconds(),
	}
	for _, c := range u.Classes {
		out.Classes = append(out.Classes, ClassDetail(c))
	}
	return out
}
