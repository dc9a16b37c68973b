package message

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// maxDirs bounds the directories above one block: the most that fit in a path.
const maxDirs = block.MaxPath/2 + 1

// ToWire returns the message for b. With withPath false the message has only the hash of the
// path.
func ToWire(b *BlockInfo, withPath bool) *wire.BlockInfo {
	w := &wire.BlockInfo{
		Seq: b.Seq, Size: b.Size, Mode: b.Mode, Uid: b.UID, Gid: b.GID,
		Mtime: b.Mtime, Expires: b.Expires, Pinned: b.Pinned,
	}
	if withPath {
		w.Path = []byte(b.Path)
	} else {
		w.PathHash = location.HashPath(b.Path)
	}
	if b.User != "" {
		w.User = []byte(b.User)
	}
	if b.Sum.Valid {
		w.Sum = proto.Uint64(b.Sum.Sum)
	}
	for _, d := range b.Dirs {
		w.Dirs = append(w.Dirs, &wire.DirInfo{Mode: d.Mode, Uid: d.UID, Gid: d.GID})
	}
	return w
}

// FromWire returns the BlockInfo that a message describes, with the given path. It fails with
// rdma.ErrProtocol if the message makes no sense.
func FromWire(w *wire.BlockInfo, path string) (BlockInfo, error) {
	if w == nil {
		return BlockInfo{}, fmt.Errorf("%w: no block info", rdma.ErrProtocol)
	}
	b := BlockInfo{
		Path: path, Seq: w.GetSeq(), Size: w.GetSize(),
		Mode: w.GetMode(), UID: w.GetUid(), GID: w.GetGid(),
		Mtime: w.GetMtime(), Expires: w.GetExpires(), Pinned: w.GetPinned(),
		User: block.UserAttrs(w.GetUser()),
	}
	if w.Sum != nil {
		b.Sum = block.Checksum{Sum: w.GetSum(), Valid: true}
	}
	if b.Size < 0 || b.Size > location.MaxSize {
		return BlockInfo{}, fmt.Errorf("%w: %s of %d bytes", rdma.ErrProtocol, path, b.Size)
	}
	if len(w.GetDirs()) > maxDirs {
		return BlockInfo{}, fmt.Errorf("%w: %s below %d directories", rdma.ErrProtocol, path, len(w.GetDirs()))
	}
	if err := b.User.Check(); err != nil {
		return BlockInfo{}, fmt.Errorf("%w: %s: %w", rdma.ErrProtocol, path, err)
	}
	for _, d := range w.GetDirs() {
		b.Dirs = append(b.Dirs, DirInfo{Mode: d.GetMode(), UID: d.GetUid(), GID: d.GetGid()})
	}
	return b, nil
}

// BlockName returns the name of a block on the bulk channel.
func BlockName(ref *BlockRef) ([]byte, error) {
	return proto.Marshal(&wire.BlockRef{Path: []byte(ref.Path), Seq: ref.Seq, Patient: ref.Patient, Claim: ref.Claim})
}

// ParseName is the inverse of BlockName.
func ParseName(name []byte) (BlockRef, error) {
	var w wire.BlockRef
	if err := proto.Unmarshal(name, &w); err != nil {
		return BlockRef{}, err
	}
	return RefFromWire(&w)
}

// RefFromWire returns the BlockRef of a message. It fails if no block can have the path.
func RefFromWire(w *wire.BlockRef) (BlockRef, error) {
	ref := BlockRef{Path: string(w.GetPath()), Seq: w.GetSeq(), Patient: w.GetPatient(), Claim: w.GetClaim()}
	_, err := block.ParseKey(ref.Path)
	return ref, err
}

// LeaseStatus returns the status of a lease that failed.
func LeaseStatus(err error) wire.LeaseStatus {
	switch {
	case errors.Is(err, rdma.ErrGone):
		return wire.LeaseStatus_LEASE_GONE
	case errors.Is(err, rdma.ErrLater):
		return wire.LeaseStatus_LEASE_LATER
	}
	return wire.LeaseStatus_LEASE_BUSY
}

// LeaseError is the inverse of LeaseStatus. It returns nil for another status.
func LeaseError(s wire.LeaseStatus) error {
	switch s {
	case wire.LeaseStatus_LEASE_GONE:
		return rdma.ErrGone
	case wire.LeaseStatus_LEASE_BUSY:
		return rdma.ErrBusy
	case wire.LeaseStatus_LEASE_LATER:
		return rdma.ErrLater
	}
	return nil
}

// CheckLease decodes a granted lease. It fails with rdma.ErrProtocol if the lease is for
// another block.
func CheckLease(r *wire.LeaseResult, ref *BlockRef) (BlockInfo, error) {
	switch {
	case r.GetStatus() != wire.LeaseStatus_LEASE_GRANTED:
		return BlockInfo{}, fmt.Errorf("%w: lease status %d", rdma.ErrProtocol, r.GetStatus())
	case r.GetInfo() == nil || len(r.GetRegionKey()) > rdma.MaxKey:
		return BlockInfo{}, fmt.Errorf("%w: lease without block info or region", rdma.ErrProtocol)
	}
	return CheckAnswer(r.GetInfo(), r.GetRegionSize(), ref)
}

// ReleaseOf returns the request that releases the leases of an answer.
func ReleaseOf(reply *wire.LeaseReply) *wire.ReleaseRequest {
	req := &wire.ReleaseRequest{}
	for _, r := range reply.GetResults() {
		if r.GetStatus() == wire.LeaseStatus_LEASE_GRANTED {
			req.Leases = append(req.Leases, r.GetLease())
		}
	}
	return req
}

// Header returns the header that the holder sends on the bulk channel. If the directories do
// not fit, it leaves out the innermost ones; the receiver creates those as it creates any
// directory. It fails with ErrTooLarge if the attributes of processes do not fit: a block is not given without them.
func Header(b *BlockInfo) ([]byte, error) {
	w := ToWire(b, false)
	for {
		h, err := proto.Marshal(w)
		if err != nil || len(h) <= rdma.MaxHeader {
			return h, err
		}
		if len(w.Dirs) == 0 {
			return nil, fmt.Errorf("header of %d bytes: %w", len(h), block.ErrTooLarge)
		}
		w.Dirs = w.Dirs[:len(w.Dirs)/2]
	}
}

// ParseHeader reads the header that answers ref. It fails with rdma.ErrProtocol if the header
// is for another block.
func ParseHeader(h []byte, size int64, ref *BlockRef) (BlockInfo, error) {
	var w wire.BlockInfo
	if err := proto.Unmarshal(h, &w); err != nil {
		return BlockInfo{}, fmt.Errorf("%w: header: %w", rdma.ErrProtocol, err)
	}
	return CheckAnswer(&w, size, ref)
}

// CheckAnswer returns the description of a block of size bytes that answers ref. It fails with
// rdma.ErrProtocol if the answer is for another block or lacks a checksum.
func CheckAnswer(w *wire.BlockInfo, size int64, ref *BlockRef) (BlockInfo, error) {
	if err := CheckPath(w, ref.Path); err != nil {
		return BlockInfo{}, err
	}
	b, err := FromWire(w, ref.Path)
	switch {
	case err != nil:
		return BlockInfo{}, err
	case ref.Seq != 0 && b.Seq != ref.Seq:
		return BlockInfo{}, fmt.Errorf("%w: %s: version %d instead of %d", rdma.ErrProtocol, ref.Path, b.Seq, ref.Seq)
	case b.Size != size:
		return BlockInfo{}, fmt.Errorf("%w: %s: header of %d bytes, body of %d", rdma.ErrProtocol, ref.Path, b.Size, size)
	case !b.Sum.Valid:
		return BlockInfo{}, fmt.Errorf("%w: %s: no checksum", rdma.ErrProtocol, ref.Path)
	}
	return b, nil
}

// CheckPath fails if an answer carries the hash of another path.
func CheckPath(w *wire.BlockInfo, path string) error {
	if w.GetPathHash() != location.HashPath(path) {
		return fmt.Errorf("%w: another path than %s", rdma.ErrProtocol, path)
	}
	return nil
}

// kinds are the errors of a store outcome, in their order on the wire. Only append.
var kinds = []error{
	block.ErrNotFound, block.ErrPending, block.ErrCorrupt, block.ErrNoSpace, block.ErrQuota, block.ErrBudget,
	block.ErrTooLarge, block.ErrPinned, block.ErrUnavailable, block.ErrInvalid, block.ErrNameTooLong,
	block.ErrReserved, block.ErrReadOnly, block.ErrClosed, block.ErrExist, block.ErrNotDir, block.ErrIsDir,
	block.ErrNotEmpty, block.ErrLoop,
}

// KindToWire returns the position of err's kind in kinds, counted from 1, or 0 for nil. The
// caller sees any other error as ErrUnavailable.
func KindToWire(err error) uint32 {
	if err == nil {
		return 0
	}
	i := slices.IndexFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
	if i < 0 {
		i = slices.Index(kinds, block.ErrUnavailable)
	}
	return uint32(i) + 1
}

// KindFromWire is the inverse of KindToWire.
func KindFromWire(kind uint32) error {
	switch {
	case kind == 0:
		return nil
	case kind > uint32(len(kinds)):
		return block.ErrUnavailable // a kind that only a newer version knows
	}
	return kinds[kind-1]
}
