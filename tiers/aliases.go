package tiers

import (
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/lane"
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
