package state

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/pattern"
)

// Options configures an Engine. The zero value of each field is usable, unless the field says otherwise.
type Options struct {
	Primary       driver.Primary // required: tier 0
	CapacityBytes int64          // required: hard cap on the bytes in the primary tier
	HeadroomBytes int64          // how far the primary's file system exceeds CapacityBytes
	Policy        string         // eviction order: lru, arc, mq, s3fifo. Empty means lru.

	// BurstGap is the longest pause within a burst of uses by one process, of which the last block is evicted first. A
	// burst lasts at most 20 such pauses. Zero: each use is for itself.
	BurstGap time.Duration

	HighWatermark float64 // share of capacity above which the evictor runs. Zero means 0.98.
	LowWatermark  float64 // share at which it stops. Zero means 0.95.

	Groups map[block.GroupID]GroupOptions

	// Secondaries are the tiers below memory, fastest first. The engine closes them.
	Secondaries []SecondaryOptions
	CatchUpRate int64 // bytes a second, to a tier that was away, of the blocks that it missed. Zero means no bound.

	// OpenDeadline bounds how long an open waits for a block to come into memory. An open that is
	// predicted to take longer is a miss at once. An open that does take longer is a miss at the
	// deadline. Zero means PromoteTimeout alone.
	OpenDeadline time.Duration

	PromoteOnLookup   bool          // promote from a positive look-up on, not only from the open on
	PromoteTimeout    time.Duration // longest that an open waits before it is a miss. Zero means 30 s.
	PromoteBatchKeys  int           // most blocks of one load job. Zero means 64.
	PromoteBatchBytes int64         // most bytes of one load job, but at least one block. Zero means 8 MiB.
	PromoteWindow     time.Duration // how long a job waits for more blocks. Zero: not at all.
	TierSummary       bool          // log one line for each load job

	RootMode         uint32 // permission bits of the root directory. Zero means 0755.
	RootUID, RootGID uint32 // its owner

	WriteTimeout time.Duration // longest wait for space before ErrNoSpace. Zero means 5 s.
	LookupLease  time.Duration // no eviction for this long after a positive look-up. Zero means 30 s; negative none.
	TempPatterns []string      // names held back until renamed, as a pattern.Set takes them. Nil means pattern.Temp.
	TempExpiry   time.Duration // abandoned temporary files go after this. Zero means 1 h.

	// PlainPatterns are names of files that are POSIX from the first byte. They are never
	// cascaded, evicted or expired. Nil means pattern.Plain.
	PlainPatterns []string

	// Alive reports whether a process has not ended. Nil means that no process has ended. It may read
	// /proc; no lock is held.
	Alive func(Process) bool

	// HideElsewhere has ReadDir leave out entries that only other nodes have. Otherwise it
	// shows those that were looked up before, and not the rest.
	HideElsewhere bool
	// ListWait is the longest wait for other nodes that list a directory. The kernel holds a lock of the
	// directory meanwhile, and a process that creates a file in it waits. Zero means 50 ms.
	ListWait time.Duration

	// Kernels: several kernels refer to entries. Invalidate tells all of them what one of them
	// changed, and absence is never Attr.Stable. Invalidate does not report the time of last access,
	// nor new names in a directory, which change its times.
	Kernels bool

	// Invalidate is called when a name that the kernel may have cached is gone,
	// and not by the kernel's doing. It must not block; no lock is held.
	//
	// With Kernels it is also called when a kernel made a name mean another entry than id, or nothing. If the
	// attributes of id have changed, or its bytes in place, and all names stay, it is called with no parent and no
	// name. by is the process for which a kernel asked to change the name: that kernel knows of the change once it is
	// answered. If the answer is an error, the call is repeated without by. by is zero if no kernel knows.
	Invalidate func(by Process, parent, id index.ID, name string)

	// Dropped is called after the file of a blob was removed, when no handle of the engine uses it any more. The
	// front can then release what refers to it (a registered backing file). It must not block; no lock is held.
	Dropped func(driver.BlobID)

	// Freed is called with the device and inode number of a block's file that was removed from memory, or truncated
	// in place. No other file can have the numbers before it returns. Code that has mapped or registered the file
	// lets go of the pages now. It must not block; no lock is held. Nil: no code has.
	Freed func(dev, ino uint64)

	// Loaded is called after each load job, when the readers have been told. It must not block; no lock is held. Nil:
	// nobody is told.
	Loaded func(*lane.Batch)

	Now    func() time.Time // nil means time.Now
	Logger *zap.Logger      // nil means none
}

// GroupOptions configures one group.
type GroupOptions struct {
	Pinned     bool  // never evicted; rewritten in place
	QuotaBytes int64 // cap on the group's bytes. 0: none.
	BlockBytes int64 // size of its blocks. 0: learned from the blocks written.
	Strict     bool  // commit only blocks of BlockBytes. Not for a pinned group.

	OpenDeadline time.Duration // as Options.OpenDeadline. 0: that one holds.
}

// Counters are totals since Open.
type Counters struct {
	Stored            uint64 `json:"stored_blocks" help:"commits"`
	StoredBytes       uint64 `json:"stored_bytes" help:"bytes of these blocks"`
	Opened            uint64 `json:"opens" help:"opens of blocks for reading"`
	Evicted           uint64 `json:"evicted_blocks" help:"evictions from memory"`
	EvictedBytes      uint64 `json:"evicted_bytes" help:"bytes of these blocks"`
	Expired           uint64 `json:"expired_files" help:"blocks removed at the end of their time to live, and abandoned temporary files"`
	Removed           uint64 `json:"removed_blocks" help:"blocks removed by unlink, or replaced"`
	Adopted           uint64 `json:"adopted_blocks" help:"blocks in memory taken over from an earlier daemon"`
	AdoptedBytes      uint64 `json:"adopted_bytes" help:"bytes of these blocks"`
	AdoptDropped      uint64 `json:"not_adopted_files" help:"files found at the start that were changed after their commit, or superseded"`
	NoSpace           uint64 `json:"no_space_writes" help:"writes refused for lack of room"`
	Overruns          uint64 `json:"overruns" help:"files that grew past their reservation"`
	Poisoned          uint64 `json:"poisoned_commits" help:"commits refused because a write had failed"`
	KilledWriters     uint64 `json:"killed_writer_commits" help:"commits refused because a signal killed the writer"`
	LookupMisses      uint64 `json:"lookup_misses" help:"the same number as 'misses' of ['reads'](#hits-and-misses)"`
	LookupHit         uint64 `json:"lookup_hits" help:"look-ups of names that exist in some tier"`
	Superseded        uint64 `json:"superseded_blocks" help:"blocks removed here because another node removed or replaced them"`
	Implausible       uint64 `json:"implausible_versions" help:"version numbers of other nodes that no clock gives, and that were ignored"`
	PromoteNoRoom     uint64 `json:"promotion_no_room_blocks" help:"promotions given up because nothing in memory could be evicted"`
	FullOfOpen        uint64 `json:"full_of_open_waits" help:"opens and writes that waited because memory was full of open, pinned and temporary files"`
	FullOfLeased      uint64 `json:"full_of_leased_waits" help:"opens and writes that waited because memory was full of leased blocks that no other tier has"`
	FileSystemFull    uint64 `json:"file_system_full" help:"times that the file system below memory had no room although the accounts had"`
	Lost              uint64 `json:"lost_blocks" help:"evictions of blocks that no other tier had"`
	DeadlinePredicted uint64 `json:"deadline_predicted_misses" help:"opens that missed at once because the block was predicted to miss the [deadline](semantics.md)"`
	DeadlineExceeded  uint64 `json:"deadline_exceeded_misses" help:"opens that missed because the block came too late"`
}

// Fill sets defaults, then reports every violation.
func (o *Options) Fill() error {
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 5*time.Second)
	o.LookupLease = cmp.Or(o.LookupLease, 30*time.Second)
	o.TempExpiry = cmp.Or(o.TempExpiry, time.Hour)
	o.PromoteTimeout = cmp.Or(o.PromoteTimeout, 30*time.Second)
	o.ListWait = cmp.Or(o.ListWait, 50*time.Millisecond)
	o.PromoteBatchKeys = cmp.Or(o.PromoteBatchKeys, 64)
	o.PromoteBatchBytes = cmp.Or(o.PromoteBatchBytes, 8<<20)
	o.HighWatermark = cmp.Or(o.HighWatermark, 0.98)
	o.LowWatermark = cmp.Or(o.LowWatermark, min(0.95, o.HighWatermark))
	o.RootMode = cmp.Or(o.RootMode, 0o755)
	o.Policy = cmp.Or(o.Policy, "lru")
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.TempPatterns == nil {
		o.TempPatterns = pattern.Temp
	}
	if o.PlainPatterns == nil {
		o.PlainPatterns = pattern.Plain
	}
	if o.Alive == nil {
		o.Alive = func(Process) bool { return true }
	}
	if o.Invalidate == nil {
		o.Invalidate = func(Process, index.ID, index.ID, string) {}
	}
	if o.Dropped == nil {
		o.Dropped = func(driver.BlobID) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	var errs []error
	if o.Primary == nil {
		errs = append(errs, errors.New("primary tier missing"))
	}
	if o.CapacityBytes < catalog.PageBytes {
		errs = append(errs, fmt.Errorf("capacity of %d bytes is below one block of %d", o.CapacityBytes, catalog.PageBytes))
	}
	if o.HighWatermark <= 0 || o.HighWatermark > 1 || o.LowWatermark <= 0 || o.LowWatermark > o.HighWatermark {
		errs = append(errs, fmt.Errorf("watermarks low %v, high %v: want 0 < low <= high <= 1", o.LowWatermark, o.HighWatermark))
	}
	return errors.Join(append(errs, o.checkSecondaries()...)...)
}

// checkSecondaries fills in the defaults of o.Secondaries and returns what is wrong with them.
func (o *Options) checkSecondaries() []error {
	var errs []error
	names := map[string]bool{"memory": true}
	remotes := 0
	if len(o.Secondaries) > maxSecondaries {
		errs = append(errs, fmt.Errorf("%d secondary tiers: at most %d", len(o.Secondaries), maxSecondaries))
	}
	o.Secondaries = append([]SecondaryOptions(nil), o.Secondaries...)
	for i := range o.Secondaries {
		s := &o.Secondaries[i]
		if s.Cascade == "" {
			s.Cascade = CascadeAsync
		}
		if s.QueueBytes == 0 {
			s.QueueBytes = min(o.CapacityBytes/4, 1<<30)
		}
		switch {
		case s.Tier == nil:
			errs = append(errs, fmt.Errorf("secondary tier %q missing", s.Name))
		case s.Name == "" || names[s.Name]:
			errs = append(errs, fmt.Errorf("secondary tier %d: name %q is empty or taken", i, s.Name))
		case s.Cascade != CascadeAsync && s.Cascade != CascadeSync && s.Cascade != CascadeOnEvict && s.Cascade != CascadeOff:
			errs = append(errs, fmt.Errorf("secondary tier %q: cascade %q: want async, sync, on_evict or off", s.Name, s.Cascade))
		case s.QueueBytes < 0:
			errs = append(errs, fmt.Errorf("secondary tier %q: queue of %d bytes", s.Name, s.QueueBytes))
		}
		names[s.Name] = true
		if _, ok := s.Tier.(driver.Remote); ok {
			remotes++
		}
	}
	if remotes > 1 {
		errs = append(errs, fmt.Errorf("%d tiers of other nodes: at most one", remotes))
	}
	return errs
}

// CascadeMode says when committed blocks are copied down to a secondary tier.
type CascadeMode string

// The cascade modes; the empty one is CascadeAsync.
const (
	CascadeAsync   CascadeMode = "async"    // in the background
	CascadeSync    CascadeMode = "sync"     // close and rename wait for the copy
	CascadeOnEvict CascadeMode = "on_evict" // before the block leaves memory
	CascadeOff     CascadeMode = "off"      // only if fsync asks for the copy
)

// SecondaryOptions describes one secondary tier.
type SecondaryOptions struct {
	Name    string      // required; "memory" is taken
	Tier    driver.Tier // required; closed by Engine.Close
	Cascade CascadeMode

	// QueueBytes bounds the bytes of blocks that wait for this tier and cannot be evicted meanwhile. Further blocks
	// wait, too, but can be evicted. Zero means a quarter of the capacity, at most 1 GiB.
	QueueBytes int64

	// SecondHit copies down only blocks that were written or read before. Blocks used once then do not wear the
	// device.
	SecondHit bool
}

// maxSecondaries is how many bits index.Entry.Tiers has.
const maxSecondaries = 16
