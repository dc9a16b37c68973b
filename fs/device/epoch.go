package device

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// A session outlives its owner. The next owner does not know the numbers of nodes and handles that an owner
// gave out. So they carry the number of the owner, the epoch, from epochShift on; only the root has no epoch. A
// request about a node of another epoch gets ESTALE, and the kernel then looks the whole path up again.
const (
	// ServiceNodes is the first number of nodes that are not blocks. Opening such a node may
	// take long, and closing it commits nothing.
	ServiceNodes uint64 = 1 << 40
	// MaxEpoch is the largest number of an owner.
	MaxEpoch = 1<<20 - 1
	// NodesEnd is above the numbers of all nodes and inodes.
	NodesEnd = (MaxEpoch + 1) << epochShift

	epochShift = 42
	nodeMask   = 1<<epochShift - 1
)

// Epoch is the number of an owner among those that have answered a mount, shifted as node
// numbers carry it. Zero means that no other process can answer the mount.
type Epoch uint64

// Number returns the owner's number from 1 on, or 0 if there can be no other owner.
func (e Epoch) Number() uint32 { return uint32(e >> epochShift) }

// Node returns the number by which the kernel knows a node.
func (e Epoch) Node(id uint64) uint64 {
	if id == fuse.FUSE_ROOT_ID {
		return id
	}
	return id | uint64(e)
}

// Ino returns the inode number of a node. No file of another file system has it, so clients can
// tell files apart by it.
func (e Epoch) Ino(id uint64) uint64 { return id | max(uint64(e), 1<<epochShift) }

// ours removes the epoch from the number of a node in a request. It reports whether the node is of this epoch.
func (e Epoch) ours(node *uint64) bool {
	if *node <= fuse.FUSE_ROOT_ID { // 0: the request is about no node
		return true
	}
	if *node&^nodeMask != uint64(e) {
		return false
	}
	*node &= nodeMask
	return true
}

// knows removes the epoch from the nodes of a request of n bytes. It reports whether they are of this epoch.
func (e Epoch) knows(h *fuse.InHeader, n int) bool {
	known := e.ours(&h.NodeId)
	type two struct { // of RENAME, RENAME2 and LINK: they begin with the second node
		fuse.InHeader
		node uint64
	}
	if (h.Opcode == opcodeRename || h.Opcode == opcodeRename2 || h.Opcode == opcodeLink) && n >= int(unsafe.Sizeof(two{})) {
		known = e.ours(&(*two)(unsafe.Pointer(h)).node) && known
	}
	return known
}

// admit turns the node numbers in the request of n bytes in w.in into those of Files. It returns false if the
// request is about an earlier owner's node: admit has then answered it itself, to fd.
func (w *worker) admit(fd, n int) bool {
	epoch := w.d.epoch
	h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
	if h.Opcode == opcodeBatchForget {
		w.admitForgets(n)
		return true
	}
	service := h.NodeId&nodeMask >= ServiceNodes
	if epoch.knows(h, n) {
		return true
	}
	st := fuse.Status(syscall.ESTALE)
	switch h.Opcode {
	case opcodeForget, opcodeInterrupt:
		w.sent = time.Now()
		return false
	case opcodeRelease, opcodeReleasedir:
		st = fuse.OK
	case opcodeFlush:
		// Only files that commit at their close are flushed: what was written is lost.
		if st = fuse.EIO; service {
			st = fuse.OK
		}
	case opcodeGetattr:
		if n >= int(unsafe.Sizeof(fuse.GetAttrIn{})) && (*fuse.GetAttrIn)(unsafe.Pointer(h)).Flags()&fuse.FUSE_GETATTR_FH == 0 {
			st = w.d.files.Earlier(h.Pid)
		}
	case opcodeLookup, opcodeAccess, opcodeCreate, opcodeOpen:
		st = w.d.files.Earlier(h.Pid)
	}
	w.reply(fd, w.head(h.Unique, st, 0))
	w.sent = time.Now()
	return false
}

// admitForgets turns the numbers of a BATCH_FORGET of n bytes, and removes those of other epochs.
func (w *worker) admitForgets(n int) {
	type one struct{ node, n uint64 }
	type batch struct {
		fuse.InHeader
		_, _ uint32 // count, and padding
	}
	head, size := int(unsafe.Sizeof(batch{})), int(unsafe.Sizeof(one{}))
	if n < head+size {
		return
	}
	list := unsafe.Slice((*one)(unsafe.Pointer(&w.in[head])), (n-head)/size)
	for i := range list {
		if f := &list[i]; !w.d.epoch.ours(&f.node) {
			*f = one{node: fuse.FUSE_ROOT_ID}
		}
	}
}

// Notices of include/uapi/linux/fuse.h that have no body.
const (
	notifyResend   = 7 // Linux 6.9
	notifyIncEpoch = 8 // Linux 6.16
)

// notifyBare sends a notice without a body.
func notifyBare(fd int, code int32) error {
	var head [headBytes]byte
	*(*fuse.OutHeader)(unsafe.Pointer(&head[0])) = fuse.OutHeader{Length: uint32(len(head)), Status: code}
	_, err := unix.Write(fd, head[:])
	return err
}

// takeOver makes the kernel send again what an earlier owner read and did not answer, and look up again all
// names that it gave out. Call it before the first read: else a request would come twice.
func (d *loop) takeOver() error {
	if err := resend(d.fd); err != nil {
		return err
	}
	if err := notifyBare(d.fd, notifyIncEpoch); err != nil {
		// Cached names are then found out by ESTALE, one by one. The kernel believes in the
		// absence of a name until EntryTimeout.
		d.log.Warn("the kernel (before Linux 6.16) cannot look up all names again: it finds old names one by one", zap.Error(err))
	}
	return nil
}

func resend(fd int) error {
	err := notifyBare(fd, notifyResend)
	if errors.Is(err, unix.EINVAL) {
		return errors.New("the kernel cannot send requests again that another process has read (Linux before 6.9)")
	}
	return os.NewSyscallError("ask for requests again", err)
}
