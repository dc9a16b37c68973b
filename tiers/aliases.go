package tiers

import (
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/elsewhere"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/lower"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/space"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/writing"
)

// What the callers of an Engine give it and get from it is declared where it is used.
type (
	// BlobID is that of the files which Opened and OpenBlob give.
	BlobID = driver.BlobID
	// Presence is where a block stands.
	Presence = driver.Presence
	// SecondaryStats is part of Stats.
	SecondaryStats = lane.Stats
	// Batch is what a load job came to.
	Batch = lane.Batch
	// LoadJob is what Jobs returns.
	LoadJob = lane.LoadJob
	// StoreJob is what StoreJobs returns.
	StoreJob = lane.StoreJob

	// Accounts are what groups, users and control groups hold and may hold.
	Accounts = space.Accounts
	// Attr is what stat shows of an entry.
	Attr = state.Attr
	// Caller is the thread that asks.
	Caller = state.Caller
	// CascadeMode says when committed blocks are copied down to a secondary tier.
	CascadeMode = state.CascadeMode
	// Change says which attributes SetAttr sets.
	Change = names.Change
	// Closer answers the questions of Flush about the process that closes a descriptor.
	Closer = writing.Closer
	// Counters are totals since Open.
	Counters = state.Counters
	// CreateOptions describes a file to be made.
	CreateOptions = writing.CreateOptions
	// Dirent is one entry of a directory.
	Dirent = state.Dirent
	// EvictKept is a block that was not evicted.
	EvictKept = space.EvictKept
	// EvictReply says what became of an EvictRequest.
	EvictReply = space.EvictReply
	// EvictRequest asks to drop blocks from one tier, as `kvfs evict` does.
	EvictRequest = space.EvictRequest
	// File is the write side of one entry.
	File = writing.File
	// GroupStats is a snapshot of one group.
	GroupStats = space.GroupStats
	// GroupOptions configures one group.
	GroupOptions = state.GroupOptions
	// Handle is one open of a File for writing.
	Handle = writing.Handle
	// Holding is what this node itself has of a name: in memory, or in a secondary tier that is not Remote.
	Holding = elsewhere.Holding
	// LendOptions says what is to be lent, and how.
	LendOptions = elsewhere.LendOptions
	// Lent is a block held for another node.
	Lent = elsewhere.Lent
	// Opened is a file open for reading.
	Opened = writing.Opened
	// Options configures an Engine.
	Options = state.Options
	// Place says where Presences found a block.
	Place = names.Place
	// PrefetchOutcome says what happened to a block that was to be brought into memory.
	PrefetchOutcome = lower.PrefetchOutcome
	// PrefetchRequest asks for blocks to be brought into memory.
	PrefetchRequest = lower.PrefetchRequest
	// PrefetchResult is the result of one path.
	PrefetchResult = lower.PrefetchResult
	// PresenceOptions are the options of Presences.
	PresenceOptions = names.PresenceOptions
	// Process is a process, with all its threads.
	Process = state.Process
	// Quota is the most memory that the files of a group, a user or a control group may take.
	Quota = space.Quota
	// QuotaKind says whose memory a quota bounds.
	QuotaKind = space.QuotaKind
	// QuotaStats is a quota, and what is used of it.
	QuotaStats = space.QuotaStats
	// RenameOptions names the file or directory that moves, and where to.
	RenameOptions = writing.RenameOptions
	// SecondaryOptions describes one secondary tier.
	SecondaryOptions = state.SecondaryOptions
	// Share is what a tier has of a group.
	Share = space.Share
	// Summary counts keys by where a reader found them, over all batches.
	Summary = state.Summary
	// Waiter is a thread that serves other requests, too.
	Waiter = state.Waiter
	// WriteOptions says how a file is opened for writing.
	WriteOptions = writing.WriteOptions
)

// The presences.
const (
	Miss    = driver.Miss
	Hit     = driver.Hit
	Pending = driver.Pending
)

// The cascade modes; the empty one is CascadeAsync.
const (
	CascadeAsync   = state.CascadeAsync
	CascadeSync    = state.CascadeSync
	CascadeOnEvict = state.CascadeOnEvict
	CascadeOff     = state.CascadeOff
)

// The outcomes of a prefetch.
const (
	PrefetchAbsent   = lower.PrefetchAbsent
	PrefetchFailed   = lower.PrefetchFailed
	PrefetchInMemory = lower.PrefetchInMemory
	PrefetchLoaded   = lower.PrefetchLoaded
	PrefetchPending  = lower.PrefetchPending
)

// The kinds of quotas.
const (
	QuotaGroup  = space.QuotaGroup
	QuotaUser   = space.QuotaUser
	QuotaCgroup = space.QuotaCgroup
)

// AtEnd is the offset with which WriteAt appends, wherever the end is by then.
const AtEnd = writing.AtEnd

// Answers of an open or a look-up that are no errors of a client.
var (
	ErrStale  = state.ErrStale  // the name must be looked up again: it means another file to its process
	ErrHollow = state.ErrHollow // the block is not in memory, so that an open has to wait
)
