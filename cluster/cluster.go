package cluster

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/rdma"
)

// Options configures a Node.
type Options struct {
	Gossip gossip.Options // name, addresses, keys; the node fills in Meta

	ControlBind string      // host:port of the control channel. Empty: a free port of the gossip host.
	TLS         *pki.Loader // mutual TLS of the control channel. Nil: plain TCP; Open then requires loopback or Insecure.
	Insecure    bool        // allow an address that is not loopback without TLS or gossip keys

	// Transport moves the bytes of blocks. It is already open. The caller makes the Node its
	// source (SetSource or the like). The Node closes it.
	Transport rdma.Transport
	// Fabric reads the memory of peers one-sided, in addition to Transport. It is already
	// open; nil means that this node has none. The node fetches by it from peers with a fabric
	// of the same Proto, as Path says. The Node closes it, and does so at once if its memory
	// cannot be registered.
	Fabric rdma.Transport
	// FabricLocal says that only this machine reaches Fabric. A fabric does not authenticate
	// its clients: if other machines may reach it, Open requires TLS or Insecure.
	FabricLocal bool
	// FabricBytes bounds the memory that is registered with Fabric for leases at a time.
	// Blocks beyond it come by Transport. Zero means 1 GiB.
	FabricBytes int64
	Path        Path

	Zone     string
	Capacity func() (total, free int64) // bytes that this node contributes; called every few seconds
	Version  string                     // of the program; for messages
	Settings uint32                     // sum of the settings that all nodes should share; 0: not told
	Require  []string                   // names of features (see meta.FeatureNames) that every peer must have; a peer without one is refused
	NoCopies bool                       // this node takes no copies at present, so peers offer it none

	Location location.Options // the caller sets Lost
	// Locations says what this node follows of the feeds of its peers.
	Locations Locations
	// GraveFile keeps the removals that this node knows of for its next process. The node
	// makes the file. Empty: removals are not kept.
	GraveFile string
	// MaxConns is the most connections that other machines may have to the control channel. Those on which no peer has made
	// a call yet are an eighth of them at most, and 1,024. Zero means 16,384.
	MaxConns    int
	CallTimeout time.Duration // bound on one call to a peer. Zero means 5 s.
	Logger      *zap.Logger   // nil means none

	tuning tuning // for tests
}

// Locations says of which keys a node knows where they are. It asks other nodes about the rest (Node.Ask).
type Locations uint8

// The values of Options.Locations.
const (
	LocationsAuto  Locations = iota // all, or if there is no room in the index the owned ones
	LocationsAll                    // all; what has no room is a miss
	LocationsOwned                  // those that the node owns (package owner)
)

// Path says which transport fetches blocks.
type Path uint8

// The paths.
const (
	// PathAuto fetches by Fabric if the peer has one of the same Proto and its memory can be
	// read; otherwise by Transport. What Fabric fails to fetch comes by Transport at once.
	PathAuto Path = iota
	PathTCP       // never Fabric, in either direction
	PathRDMA      // Fabric only: fetches from a peer without it fail (rdma.ErrUnavailable)
)

// Backend holds the blocks that a node serves to its peers. Its methods may be called in
// parallel.
type Backend interface {
	// Snapshot calls fn for each thing that this node holds now. If fn fails, Snapshot stops
	// and returns that error. A change made meanwhile may be missing or appear in its old
	// state; Append reports each change.
	Snapshot(ctx context.Context, fn func(r *feed.Record) error) error

	// Lend finds a block and holds it until the Loan is closed. It fails with rdma.ErrGone if
	// this version is not here, and with rdma.ErrBusy if it cannot be served now.
	Lend(ctx context.Context, b *BlockRef) (BlockInfo, rdma.Loan, error)

	// List returns up to limit names that this node holds below dir, in ascending order,
	// beginning after the given name. more reports whether further names follow.
	List(ctx context.Context, dir, after string, limit int) (names []Name, more bool, err error)

	// Stat returns what this node holds of each path; nil for a path of which it holds
	// nothing.
	Stat(paths []string) []*BlockInfo

	// Store takes copies of blocks that the peer from offers. It fetches them from that peer
	// and returns one outcome for each offer. It blocks until all offers are settled.
	Store(ctx context.Context, from *Peer, offers []BlockInfo) []StoreOutcome

	// Bury discards what this node holds of a path if its version is below seq. It discards a
	// directory only if that is empty. It must not block.
	Bury(path string, dir bool, seq uint64)

	// Followed is called when the index again knows all that a peer holds. It must not block.
	Followed()

	// Observe reports a version number that exists on some node, from the one of that name; "": the name is not known. Later
	// versions made here must get higher numbers. It must not block.
	Observe(seq uint64, from string)
}

// BlockRef names a block, and optionally one version of it.
type BlockRef = message.BlockRef

// BlockInfo describes one block or directory.
type BlockInfo = message.BlockInfo

// DirInfo is the attributes of a directory.
type DirInfo = message.DirInfo

// Name is one entry of a directory at a peer.
type Name = message.Name

// StoreStatus is the result of one offer.
type StoreStatus = message.StoreStatus

// The outcomes of an offer.
const (
	StoreFailed  = message.StoreFailed  // Err says why
	StoreDone    = message.StoreDone    // the peer has it now, by this offer
	StoreHad     = message.StoreHad     // the peer already had it
	StoreRefused = message.StoreRefused // no room, read-only, or a later version is known
)

// StoreOutcome is the answer to one offer.
type StoreOutcome = message.StoreOutcome

// Member describes a node, as this node knows it.
type Member struct {
	Name        string    `json:"name" help:"'node_name'"`
	State       string    `json:"state" help:"'alive', 'left', 'failed' or 'refused'"`
	Reason      string    `json:"reason,omitempty" help:"why the node is refused"`
	Self        bool      `json:"self,omitempty" help:"this node"`
	GossipAddr  string    `json:"gossip_addr" help:"address of its gossip"`
	ControlAddr string    `json:"control_addr" help:"address of its control channel"`
	BulkAddr    string    `json:"bulk_addr" help:"address from which blocks are fetched"`
	Zone        string    `json:"zone,omitempty" help:"setting 'zone'"`
	Version     string    `json:"version" help:"version of its kvfs"`
	Protocol    int       `json:"protocol" help:"version of its protocol" kind:"number"`
	Features    []string  `json:"features" help:"what the node can do"`
	Missing     []string  `json:"missing,omitempty" help:"features that this node has and the other one lacks"`
	TotalBytes  int64     `json:"total_bytes" help:"capacity of its memory and SSD"`
	FreeBytes   int64     `json:"free_bytes" help:"free part of 'total_bytes'"`
	Since       time.Time `json:"since" help:"when 'state' began"`

	// SettingsDiffer says that the settings which all nodes should share are not those of this node.
	SettingsDiffer bool `json:"settings_differ,omitempty" help:"its groups, specs, 'mount.temp_patterns', 'mount.plain_patterns' or 'replicas' are not those of this node"`
	// ClockAhead is by how much its clock is ahead of this node's, as the last exchange of removals found it. It is
	// within ClockError. Both are 0 for a node that has not told its time.
	ClockAhead float64 `json:"clock_ahead_seconds,omitempty" help:"by how much its clock is ahead of this node's, give or take the next field. The last exchange of removals found it. 0 if the node has not told its time"`
	ClockError float64 `json:"clock_error_seconds,omitempty" help:"half of the time that this measurement took"`

	Path       string `json:"path" help:"how this node fetches from it: 'rdma', 'tcp', or empty for none"`
	PathReason string `json:"path_reason,omitempty" help:"why it is not read by RDMA, or which cards do not reach it"`

	Blocks        int64  `json:"blocks" help:"blocks that it holds, without directories"`
	Feed          string `json:"feed" help:"'following', 'snapshot', 'waiting', or empty"`
	FeedRecords   uint64 `json:"feed_records" help:"records received from its feed"`
	FeedBytes     uint64 `json:"feed_bytes" help:"bytes received from its feed"`
	Snapshots     uint64 `json:"snapshots" help:"times that its feed began anew"`
	Compared      uint64 `json:"compared" help:"times that this node compared digests of all that it knows of the node with the node"`
	SnapshotBytes uint64 `json:"snapshot_bytes" help:"part of 'feed_bytes': in snapshots, and in the parts of one that digests had found to differ"`
	DigestBytes   uint64 `json:"digest_bytes" help:"bytes of digests, sent and received"`
	Breaker       string `json:"breaker" help:"'closed', 'open' or 'half-open'"`
	Failures      uint64 `json:"failures" help:"calls and fetches that failed"`
	LastError     string `json:"last_error,omitempty" help:"the last failure"`
	FetchedKeys   uint64 `json:"fetched_blocks,omitempty" help:"blocks that this node fetched from it"`
	FetchedSize   uint64 `json:"fetched_bytes,omitempty" help:"bytes of these blocks"`
}

// Fetch is one block to fetch from a peer.
type Fetch struct {
	BlockRef
	// Size is the expected number of bytes; it decides how blocks are split into requests. 0:
	// not known.
	Size int64
	// Dest is called when the peer has told what it is about to send. It returns the
	// destination; an error refuses the block. If the bytes are of no use and the peer is
	// asked in another way, Dest is called again and must return a new Hash. info is valid
	// until Done returns. Fetch does not verify the bytes: to verify them, set Dest.Hash and
	// compare it with info.Sum in Done.
	Dest func(info *BlockInfo) (rdma.Dest, error)
	// Done is called once. After it, nothing writes to the destination any more. err is
	// rdma.ErrGone, ErrBusy, ErrUnavailable, ErrProtocol, or an error of ctx or of Dest. info
	// is nil if Dest was not called.
	Done func(info *BlockInfo, err error)
}
