package device

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Watch is shown requests of the kernel. A request that is not watched costs one atomic load. Requests about service
// nodes are not shown, and neither are FORGET and INTERRUPT, which have no answer.
type Watch struct {
	Ops atomic.Uint32 // the operations that are shown: a bit for each Op (Bit)

	// Asked gets a request before it is answered: the kernel still holds its nodes, and the caller waits. Answered gets
	// it after the answer. Both are called by a thread that reads requests, and must not wait.
	Asked, Answered func(*Access)
}

// AllOps are the bits of all operations.
const AllOps = 1<<NumOps - 1

// Bit returns the bit of the operation in Watch.Ops.
func (o Op) Bit() uint32 { return 1 << o }

// Access is one request of the kernel.
type Access struct {
	Op            Op
	UID, GID, TID uint32 // of the calling thread; 0 in RELEASE, which the kernel sends by itself
	Node          uint64 // that the request is about, or the directory of Name
	Name          string // in the directory Node; empty: the request is about Node itself
	NewNode       uint64 // the directory of NewName
	NewName       string // of RENAME
	Offset        int64  // of READ, WRITE and FALLOCATE, in bytes
	Size          int64  // bytes: how many these move; of LOOKUP and CREATE, the size of the file
	Writes        bool   // of OPEN: for writing
	Came          time.Time

	// Set when the request is answered.
	Status fuse.Status
	Took   time.Duration

	Known any // what Asked leaves for Answered
}

// namesAt is where the names begin in requests that have them: bytes after the header.
var namesAt = map[uint32]int{
	opcodeLookup: 0, opcodeUnlink: 0, opcodeRmdir: 0,
	opcodeMkdir: 8, opcodeRename: 8,
	opcodeMknod: 16, opcodeCreate: 16, opcodeRename2: 16,
}

// watched decodes the request of n bytes in w.in. It returns nil for a request that is not shown.
func (w *worker) watched(n int) *Access {
	h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
	switch {
	case w.d.watch.Ops.Load()&opOf(h.Opcode).Bit() == 0, h.NodeId == 0, h.NodeId >= ServiceNodes, h.Opcode == opcodeForget, h.Opcode == opcodeBatchForget, h.Opcode == opcodeInterrupt:
		return nil
	}
	a := &Access{Op: opOf(h.Opcode), UID: h.Uid, GID: h.Gid, TID: h.Pid, Node: h.NodeId, Came: w.came}
	body := w.in[unsafe.Sizeof(*h):n]
	if at, ok := namesAt[h.Opcode]; ok && len(body) > at {
		if h.Opcode == opcodeRename || h.Opcode == opcodeRename2 {
			a.NewNode = binary.NativeEndian.Uint64(body)
		}
		name, rest, _ := bytes.Cut(body[at:], []byte{0})
		newName, _, _ := bytes.Cut(rest, []byte{0})
		if a.Name = string(name); a.NewNode != 0 {
			a.NewName = string(newName)
		}
	}
	switch {
	case a.Op == OpOpen && len(body) >= 4:
		a.Writes = binary.NativeEndian.Uint32(body)&unix.O_ACCMODE != unix.O_RDONLY
	case len(body) < 24: // handle, offset, size
	case a.Op == OpRead, a.Op == OpWrite:
		a.Offset, a.Size = int64(binary.NativeEndian.Uint64(body[8:])), int64(binary.NativeEndian.Uint32(body[16:]))
	case a.Op == OpFallocate:
		a.Offset, a.Size = int64(binary.NativeEndian.Uint64(body[8:])), int64(binary.NativeEndian.Uint64(body[16:]))
	}
	w.d.watch.Asked(a)
	return a
}

// show completes w.seen with the answer of size bytes in w.out, and shows it.
func (w *worker) show(size int) {
	a := w.seen
	a.Status = fuse.Status(-(*fuse.OutHeader)(unsafe.Pointer(&w.out[0])).Status)
	a.Took = w.sent.Sub(w.came)
	switch {
	case a.Status != fuse.OK:
	case a.Op == OpRead:
		a.Size = int64(size - headBytes)
	case a.Op == OpLookup, a.Op == OpCreate:
		entry := (*fuse.EntryOut)(unsafe.Pointer(&w.out[headBytes]))
		if a.Size = int64(entry.Size); entry.NodeId == 0 {
			a.Status = fuse.ENOENT // which the kernel may keep
		}
	}
	w.d.watch.Answered(a)
}
