package tiers

import "github.com/kvfs/kvfs/tiers/driver"

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
