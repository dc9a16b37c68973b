// Package rdma moves the bytes of blocks between the memory of two nodes. It
// knows nothing of names, tiers or clusters.
//
//	Transport  one way to move bytes: rdma/tcp, rdma/inproc, and rdma/fabric behind a build tag
//	Region     a registered file: peers may read it
//	Peer       a connection to the transport of another node
//	Getter     a Peer that finds, holds and sends named blocks in one round trip; for transports
//	           where the holder's processor takes part anyway
//	Source     the holder's side of Getter
//
// rdma/rdmatest holds the conformance suite that every transport runs.
//
// # Two ways to read
//
// One-sided: the holder leases a block over the control channel, registers its file and sends the
// RemoteRegion to the reader. The reader reads it without the holder's processor. Network cards
// with RDMA do that.
//
// Two-sided: over TCP the holder's kernel has to send the bytes in any case. So a reader names the
// blocks on the bulk connection itself (Getter) and saves the round trip of the lease. A transport
// may do only one of the two: the caller looks at Caps.
//
// Both ways read and write files, not addresses: each block is a file of its own in memory (tmpfs),
// and the kernel moves its pages by itself.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"os"
)

// The kinds of error; test with errors.Is.
var (
	// ErrUnavailable: the peer cannot be reached, or the connection broke.
	ErrUnavailable = errors.New("peer unavailable")
	// ErrGone: the holder has no such block or region (any more).
	ErrGone = errors.New("block gone")
	// ErrBusy: the holder has it, but cannot serve it now.
	ErrBusy = errors.New("peer busy")
	// ErrLater, an ErrBusy: the holder sends the block to others, and would have it for this one soon, as they would.
	ErrLater = fmt.Errorf("%w: it sends the block to others", ErrBusy)
	// ErrProtocol: the peer sent what makes no sense: too much, too little, no frame.
	ErrProtocol = errors.New("protocol violation")
	// ErrUnsafe, besides ErrUnavailable: a connection could not be closed, so the peer may still
	// write to the destination. Nothing else may be put there.
	ErrUnsafe = errors.New("destination may still be written to")
	// ErrClosed: the transport or peer was closed on this side.
	ErrClosed = errors.New("transport closed")
)

// Caps says what a transport can do.
type Caps struct {
	Proto     string // name of the protocol: two transports talk if it is equal
	OneSided  bool   // Peer.Read reads the memory of the holder; with hardware support no program of the holder takes part
	Get       bool   // every Peer of the transport is a Getter
	Encrypted bool   // bytes are encrypted and both sides authenticated

	// The fields below are for the log and for status. Callers may ignore them.
	Provider   string   // the layer below, with its version: "libfabric 1.17 tcp;ofi_rxm"; empty: none
	Rails      []string // devices in the order in which both sides count them; empty: does not choose any
	MaxMessage int64    // bytes that go at once; longer reads are split. 0: no limit
}

// RemoteRegion is what a reader must know to read a Region. It travels on an authenticated channel
// only, because anyone with it can read the block.
type RemoteRegion struct {
	Key  []byte // opaque, at most MaxKey bytes
	Size int64  // bytes
}

// Transport moves bytes. Its methods may be called in parallel.
type Transport interface {
	Caps() Caps

	// Addr is the address for Connect of another node's transport of the same Proto.
	Addr() string

	// Register lets peers read the first size bytes of file until Close of the
	// Region. The bytes must not change meanwhile; file stays open until then.
	Register(file *os.File, size int64) (Region, error)

	// Connect prepares to talk to the transport at addr. It does not wait for the network, so it
	// fails only with ErrClosed or for a malformed address.
	Connect(addr string) (Peer, error)

	// Close ends all connections. It returns when the transport no longer reads from or writes to
	// any file. A second call does nothing.
	Close() error
}

// Region is a registered file.
type Region interface {
	Remote() RemoteRegion
	// Close ends the registration and cuts off peers that are still reading. It returns when no
	// bytes of the file are being sent to any peer.
	Close() error
}

// Dest is where bytes go.
type Dest struct {
	File *os.File
	Off  int64
	// Hash, if not nil, gets the bytes in their order before the call returns. The transport
	// chooses whether it gets them during the transfer or after it.
	Hash hash.Hash64
}

// Peer is one other node. Methods may be called in parallel.
type Peer interface {
	// Read copies n bytes at off of a region of the peer to dst. It returns when all of them are
	// there, or with ErrGone, ErrUnavailable, ErrProtocol, ErrClosed, or ctx's error. After an
	// error the content of dst.File and Hash is undefined, and nothing writes to dst.File any more
	// (unless the error is also ErrUnsafe).
	Read(ctx context.Context, r RemoteRegion, off, n int64, dst Dest) error

	// Close ends the connections and fails what is under way with ErrClosed.
	Close() error
}

// Getter is the ability of a Peer to be asked for blocks by name.
type Getter interface {
	// Get asks the peer in one request for the blocks that items name. Before it returns, it calls
	// Done of each item once, in their order, from one goroutine. It returns nil if every item was
	// answered, also with ErrGone. Otherwise it returns the error of the items that were not
	// answered: ErrUnavailable, ErrProtocol, ErrClosed, or ctx's.
	Get(ctx context.Context, items []*Item) error
}

// Item is one block to get.
type Item struct {
	// Name names the block for the peer's Source: opaque, at most MaxName bytes.
	Name []byte
	// Accept is called when the peer's answer begins, before any byte is written. It gets the
	// header of the Source (valid until Accept returns) and the size in bytes, and returns the
	// destination. If it fails, Done gets its error and the bytes are dropped.
	Accept func(header []byte, size int64) (Dest, error)
	// Done is called once all bytes are in Dest, or with the error that prevents it: ErrGone,
	// ErrBusy, ErrLater, Accept's, or one of Get's. After an error nothing writes to Dest any more.
	Done func(err error)
}

// Limits of what travels, to be checked on both sides.
const (
	MaxName   = 8 << 10 // bytes of Item.Name
	MaxHeader = 4 << 10 // bytes of Loan.Header
	MaxItems  = 1024    // items of a Get
	MaxKey    = 1 << 10 // bytes of RemoteRegion.Key
)

// Source serves blocks by name.
type Source interface {
	// Lend finds the block that name means and holds it until Loan.Close. It fails
	// with ErrGone, ErrBusy, or for a reader that knows it ErrLater. It may block on a device, for no longer than ctx,
	// which ends with the connection.
	Lend(ctx context.Context, name []byte) (Loan, error)
}

// Loan is a block that is held for a peer. Its bytes do not change.
type Loan struct {
	Header []byte // for Item.Accept
	File   *os.File
	Size   int64  // bytes, from the beginning of File
	Close  func() // called once, when no byte of File is used any more
}
