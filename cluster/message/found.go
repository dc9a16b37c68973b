package message

import (
	"fmt"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// FoundToWire returns the message that a node holds e, of a path. Path and node are numbers in the reply.
func FoundToWire(e *location.Entry, path, node uint32) *wire.Found {
	return &wire.Found{
		Path: path, Node: node, Seq: e.Seq, Size: e.Size, Mode: e.Mode, Uid: e.UID, Gid: e.GID, Memory: e.Memory,
	}
}

// FoundFromWire returns what a node holds of a path. It fails with rdma.ErrProtocol if the message makes no sense.
func FoundFromWire(w *wire.Found, path string) (location.Entry, error) {
	e := location.Entry{
		Hash: location.HashPath(path), Seq: w.GetSeq(), Size: w.GetSize(),
		Mode: w.GetMode(), UID: w.GetUid(), GID: w.GetGid(), Memory: w.GetMemory(),
	}
	if kind := e.Mode &^ 0o7777; kind != 0o100000 && kind != 0o040000 || e.Seq == 0 || e.Size < 0 || e.Size > location.MaxSize {
		return location.Entry{}, fmt.Errorf("%w: %s: mode %#o, version %d, %d bytes", rdma.ErrProtocol, path, e.Mode, e.Seq, e.Size)
	}
	return e, nil
}
