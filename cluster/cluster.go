package cluster

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Options configures a Node.
type Options struct {
	Gossip gossip.Options // name, addresses, keys; Meta is filled in by the node

	ControlBind string      // host:port of the control channel. Empty: a free port of the gossip host.
	TLS         *pki.Loader // mutual TLS of the control channel. Nil: plain, which Open refuses unless loopback or Insecure.
	Insecure    bool        // allow an address that is not loopback without TLS or gossip keys

	// Transport moves the bytes. It is open, its source is the Node (SetSource or alike
	// is the caller's wiring); the Node closes it.
	Transport rdma.Transport
	// Fabric reads the memory of peers one-sided, besides Transport: open; nil if there is
	// none. Blocks are fetched by it from peers that have one of the same Proto, as Path
	// says. The Node closes it, at once if no memory can be registered with it.
	Fabric rdma.Transport
	// FabricLocal says that only this machine reaches Fabric. Who reaches one is not asked who
	// he is: where it may be another machine, Open wants TLS or Insecure.
	FabricLocal bool
	// FabricBytes bounds the memory that is registered with Fabric for leases at a time; what
	// exceeds it comes by Transport. Zero means 1 GiB.
	FabricBytes int64
	Path        Path

	Zone     string
	Capacity func() (total, free int64) // bytes that this node contributes, asked for now and then
	Version  string                     // of the program, for messages
	Require  []string                   // features (see Feature) that every peer must have: one without is refused
	NoCopies bool                       // this node takes no copies now, though it could: peers offer it none

	Location location.Options // Lost is the caller's
	// GraveFile is where the removals that this node knows of are kept for its next process; a
	// file of its own, which is made. Empty: nowhere.
	GraveFile   string
	CallTimeout time.Duration // bound on one call to a peer. Zero means 5 s.
	Logger      *zap.Logger   // nil means none

	tuning tuning // for tests
}

// Path says by which of the two transports blocks are fetched.
type Path uint8

// The paths.
const (
	// PathAuto is Fabric from a peer that has one of the same Proto and whose memory can
	// be read, else Transport. What Fabric fails to fetch comes by Transport at once.
	PathAuto Path = iota
	PathTCP       // never Fabric, in either direction
	PathRDMA      // Fabric only: from a peer without it nothing is fetched (rdma.ErrUnavailable)
)

// Backend is what a node serves to its peers and does on their behalf. Its methods may
// be called in parallel.
type Backend interface {
	// Snapshot calls fn for what this node holds now, until it fails, and returns its
	// error. What changes meanwhile may be missing, or in an old state: Append has told
	// or will tell of it.
	Snapshot(ctx context.Context, fn func(r *feed.Record) error) error

	// Lend finds a block and holds it until the Loan is closed. It fails with
	// rdma.ErrGone if this version is not here, rdma.ErrBusy if it cannot be served now.
	Lend(ctx context.Context, b *BlockRef) (BlockInfo, rdma.Loan, error)

	// List returns up to limit names below dir that this node holds and that come after
	// the given one, in ascending order, and whether there are more.
	List(ctx context.Context, dir, after string, limit int) (names []Name, more bool, err error)

	// Stat tells what this node holds of each path; nil where nothing.
	Stat(paths []string) []*BlockInfo

	// Store takes copies of blocks that the caller, a peer, holds: it fetches them from
	// there. One outcome for each offer. It blocks until all are dealt with.
	Store(ctx context.Context, from *Peer, offers []BlockInfo) []StoreOutcome

	// Bury makes void what this node holds of a path below seq. A directory goes only
	// if it is empty. It must not block.
	Bury(path string, dir bool, seq uint64)

	// Followed tells that all that a peer holds is known anew. It must not block.
	Followed()

	// Observe tells of a version number that exists somewhere, so that later versions
	// made here get higher ones. It must not block.
	Observe(seq uint64)
}

// BlockRef says which block is meant.
type BlockRef struct {
	Path string
	Seq  uint64 // this version only; 0: any
}

// BlockInfo describes one block or directory.
type BlockInfo struct {
	Path    string
	Seq     uint64
	Size    int64          // bytes
	Sum     block.Checksum // of the bytes; in answers to a fetch always valid
	Mode    uint32         // type and permission bits, as st_mode
	UID     uint32
	GID     uint32
	Mtime   int64 // nanoseconds since the epoch
	Expires int64 // likewise; 0: never
	Pinned  bool
	Dirs    []DirInfo // of the directories above it, outermost first
}

// DirInfo is what is kept of a directory.
type DirInfo struct{ Mode, UID, GID uint32 }

// Name is one entry of a directory at a peer.
type Name struct {
	Name string // one component
	BlockInfo
}

// StoreStatus says what became of one offer.
type StoreStatus uint8

// The outcomes of an offer.
const (
	StoreFailed  StoreStatus = iota // Err says why
	StoreDone                       // the peer has it now
	StoreHad                        // it had it before
	StoreRefused                    // no room, read-only, or a later version is known
)

// StoreOutcome is the answer to one offer.
type StoreOutcome struct {
	Status StoreStatus
	Err    error // StoreFailed and StoreRefused: one of the kinds of package block
}

// Member is what is known of a node.
type Member struct {
	Name        string    `json:"name"`
	State       string    `json:"state"` // "alive", "left", "failed", "refused"
	Reason      string    `json:"reason,omitempty"`
	Self        bool      `json:"self,omitempty"`
	GossipAddr  string    `json:"gossip_addr"`
	ControlAddr string    `json:"control_addr"`
	BulkAddr    string    `json:"bulk_addr"`
	Zone        string    `json:"zone,omitempty"`
	Version     string    `json:"version"`
	Protocol    int       `json:"protocol"`
	Features    []string  `json:"features"`          // what it can do
	Missing     []string  `json:"missing,omitempty"` // what this node would use and it lacks
	TotalBytes  int64     `json:"total_bytes"`
	FreeBytes   int64     `json:"free_bytes"`
	Since       time.Time `json:"since"` // of State

	Path       string `json:"path"`                  // by which it is fetched from: "rdma", "tcp"; "" if by none now, or itself
	PathReason string `json:"path_reason,omitempty"` // why not by RDMA, if this node has or should have it; with "rdma", which devices do not reach it

	Blocks      int64  `json:"blocks"`                 // that the index knows it to hold
	Feed        string `json:"feed"`                   // "following", "snapshot", "waiting", ""
	FeedRecords uint64 `json:"feed_records"`           // received
	FeedBytes   uint64 `json:"feed_bytes"`             // likewise
	Snapshots   uint64 `json:"snapshots"`              // how often it began anew
	Breaker     string `json:"breaker"`                // "closed", "open", "half-open": of calls or fetches, whichever is worse
	Failures    uint64 `json:"failures"`               // of calls and fetches
	LastError   string `json:"last_error,omitempty"`   // of them
	FetchedKeys uint64 `json:"fetched_keys,omitempty"` // by this node from there
	FetchedSize uint64 `json:"fetched_bytes,omitempty"`
}

// Fetch is one block to fetch from a peer.
type Fetch struct {
	BlockRef
	// Size is how many bytes it is expected to have, by which requests are split. 0: not
	// known.
	Size int64
	// Dest is called when the peer has said what it is about to send, and returns where
	// it goes; an error refuses it. It is called again if what came is of no use and the
	// peer is asked in another way; the Hash must be a new one then. info is valid until Done returns. The bytes are not
	// verified here: who wants that gives Dest.Hash and compares it with info.Sum in Done.
	Dest func(info *BlockInfo) (rdma.Dest, error)
	// Done is called once, after which nothing writes to the destination any more.
	// err: rdma.ErrGone, ErrBusy, ErrUnavailable, ErrProtocol, ctx's, Dest's. info is
	// nil if Dest was not called.
	Done func(info *BlockInfo, err error)
}
