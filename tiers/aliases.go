package tiers

import (
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// BlobID is that of the files which Opened and OpenBlob give.
type BlobID = driver.BlobID

// Presence is where a block stands.
type Presence = driver.Presence

// The presences.
const (
	Miss    = driver.Miss
	Hit     = driver.Hit
	Pending = driver.Pending
)

// SecondaryStats is part of Stats.
type SecondaryStats = lane.Stats

// LoadJob is what Jobs returns.
type LoadJob = lane.LoadJob

// StoreJob is what StoreJobs returns.
type StoreJob = lane.StoreJob

// Options configures an Engine.
type Options = state.Options

// GroupOptions configures one group.
type GroupOptions = state.GroupOptions

// SecondaryOptions describes one secondary tier.
type SecondaryOptions = state.SecondaryOptions

// CascadeMode says when committed blocks are copied down to a secondary tier.
type CascadeMode = state.CascadeMode

// The cascade modes; the empty one is CascadeAsync.
const (
	CascadeAsync   = state.CascadeAsync
	CascadeSync    = state.CascadeSync
	CascadeOnEvict = state.CascadeOnEvict
	CascadeOff     = state.CascadeOff
)

// Counters are totals since Open.
type Counters = state.Counters

// Summary counts keys by where a reader found them.
type Summary = state.Summary

// Attr is what stat shows of an entry.
type Attr = state.Attr

// Dirent is one entry of a directory.
type Dirent = state.Dirent

// Caller is the thread that asks.
type Caller = state.Caller

// Waiter is a thread that serves other requests, too.
type Waiter = state.Waiter

// Process is a process, with all its threads.
type Process = state.Process

// Errors of an Engine that are no errors of its callers.
var (
	ErrStale  = state.ErrStale  // the name must be looked up again
	ErrHollow = state.ErrHollow // the block is not in memory: OpenLater waits for it
)
