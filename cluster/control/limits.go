package control

import "time"

// MaxName bounds a node's name, in bytes.
const MaxName = 128

// Limits of one call and of its message.
const (
	MaxStat        = 4096        // paths of a Stat
	MaxStatBytes   = 256 << 10   // bytes of these paths
	MaxOffers      = 64          // blocks of a Store or Lease
	MaxStoreFields = 16 << 10    // fields of the offers of one Store
	MaxReleases    = 512         // leases of a Release: those of one connection
	MaxGraves      = 1024        // of one message
	MaxParts       = 1 << 16     // parts of a digest: feed.MaxParts
	MaxMessage     = 320 << 10   // bytes of a message that comes with a call; graves are the largest
	MaxCallTime    = time.Minute // of a call that this node makes, other than Subscribe
)
