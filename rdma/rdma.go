// Package rdma moves the bytes of blocks between the memory of two nodes. It
// knows nothing of names, tiers or clusters.
//
//	Transport  one way to move bytes: rdma/tcp, rdma/inproc, and rdma/fabric behind a build tag
//	Region     a file that peers may read while it is registered
//	Peer       a connection to one other node's transport
//	Getter     what a Peer can do besides where the holder's processor takes part anyway:
//	           find, hold and send named blocks in one round trip
//	Source     the holder's side of Getter
//
// rdma/rdmatest holds the conformance suite that every transport runs.
//
// # Two ways to read
//
// One-sided: the holder leases a block over the control channel, registers its file
// and tells the reader the RemoteRegion; the reader reads it without the holder's
// processor. That is what a network card with RDMA is for.
//
// Two-sided: over TCP the holder's kernel has to send the bytes in any case, so a
// reader names the blocks on the bulk connection itself (Getter) and saves the round
// trip of the lease. A transport that can do only this, or only the other, is
// complete: the caller looks at Caps.
//
// Files, not addresses, are what is read and written, because each block is a file
// in memory of its own (tmpfs): the kernel moves its pages by itself.
package rdma

import (
	"context"
	"errors"
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
	// ErrProtocol: the peer sent what makes no sense: too much, too little, no frame.
	ErrProtocol = errors.New("protocol violation")
	// ErrUnsafe, besides ErrUnavailable: a connection could not be closed, so that what was read
	// to may still be written to. Nothing else may be put there.
	ErrUnsafe = errors.New("destination may still be written to")
	// ErrClosed: the transport or peer was closed on this side.
	ErrClosed = errors.New("transport closed")
)

// Caps says what a transport can do.
type Caps struct {
	Proto     string // name of the protocol: two transports talk if it is equal
	OneSided  bool   // Peer.Read goes to the memory of the holder, whose programs take no part where the hardware can
	Get       bool   // every Peer of it is a Getter
	Encrypted bool   // bytes are encrypted and both sides authenticated

	// What follows is told for the log and for status; callers need not heed it.
	Provider   string   // what is below, with its version: "libfabric 1.17 tcp;ofi_rxm"; empty: none
	Rails      []string // devices in the order in which both sides count them; empty: does not choose any
	MaxMessage int64    // bytes that go at once; longer reads are split. 0: no limit
}

// RemoteRegion is what a reader must know to read a Region. It travels on an
// authenticated channel only: who has it can read the block.
type RemoteRegion struct {
	Key  []byte // opaque, at most MaxKey bytes
	Size int64  // bytes
}

// Transport moves bytes. Its methods may be called in parallel.
type Transport interface {
	Caps() Caps

	// Addr is what Connect of another node's transport of the same Proto takes.
	Addr() string

	// Register lets peers read the first size bytes of file until Close of the
	// Region. The bytes must not change meanwhile; file stays open until then.
	Register(file *os.File, size int64) (Region, error)

	// Connect makes ready to talk to the transport at addr. It does not wait for the
	// network, so it fails with ErrClosed or a malformed address only.
	Connect(addr string) (Peer, error)

	// Close ends all connections and waits until nothing is read from or written
	// to any file any more. A second call does nothing.
	Close() error
}

// Region is a registered file.
type Region interface {
	Remote() RemoteRegion
	// Close ends the registration. It returns when no peer is sent bytes of the file
	// any more, cutting off those who are still reading.
	Close() error
}

// Dest is where bytes go.
type Dest struct {
	File *os.File
	Off  int64
	// Hash, if not nil, has been written the bytes in their order when the call
	// returns; whether while they come or after is the transport's choice.
	Hash hash.Hash64
}

// Peer is one other node. Methods may be called in parallel.
type Peer interface {
	// Read copies n bytes at off of a region of the peer's to dst. It returns when all
	// are there, or with ErrGone, ErrUnavailable, ErrProtocol, ErrClosed, or ctx's
	// error; then what dst.File holds is undefined, but nothing writes to it any
	// more (unless the error is ErrUnsafe, too), and the Hash is not to be used.
	Read(ctx context.Context, r RemoteRegion, off, n int64, dst Dest) error

	// Close ends the connections and fails what is under way with ErrClosed.
	Close() error
}

// Getter is the ability of a Peer to be asked for blocks by name.
type Getter interface {
	// Get asks the peer for the blocks that items name, in one request, and calls Done
	// of each item once, in their order, from one goroutine, before it returns. It
	// returns nil if every item was answered, be it with ErrGone; else the error that
	// the items from some point on had: ErrUnavailable, ErrProtocol, ErrClosed, ctx's.
	Get(ctx context.Context, items []*Item) error
}

// Item is one block to get.
type Item struct {
	// Name tells the peer's Source what is meant: opaque, at most MaxName bytes.
	Name []byte
	// Accept is called when the peer's answer begins, before any byte is written. It
	// gets what the Source has to tell (valid until it returns) and the size in
	// bytes, and returns where they go. If it fails, Done gets its error and the
	// bytes go nowhere.
	Accept func(header []byte, size int64) (Dest, error)
	// Done is called once all bytes are in Dest, or with the error that prevents it:
	// ErrGone, ErrBusy, Accept's, or one of Get's. After an error nothing writes to
	// Dest any more.
	Done func(err error)
}

// Limits of what travels, to be checked on both sides.
const (
	MaxName   = 8 << 10 // bytes of Item.Name
	MaxHeader = 4 << 10 // bytes of Loan.Header
	MaxItems  = 1024    // items of a Get
	MaxKey    = 1 << 10 // bytes of RemoteRegion.Key
)

// Source is what a node serves by name.
type Source interface {
	// Lend finds the block that name means and holds it until Loan.Close. It fails
	// with ErrGone or ErrBusy. It may block on a device, for no longer than ctx,
	// which ends with the connection.
	Lend(ctx context.Context, name []byte) (Loan, error)
}

// Loan is a block that is held for a peer: its bytes do not change.
type Loan struct {
	Header []byte // for Item.Accept
	File   *os.File
	Size   int64  // bytes, from the beginning of File
	Close  func() // called once, when no byte of File is used any more
}
