package fs

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

// A mount that Attach made outlives its owner. The numbers of nodes and handles that an
// owner gave out mean nothing to the next one, so they carry the number of the owner, the
// epoch, from epochShift on; only the root has no epoch. A request about a node of another
// epoch is answered ESTALE, upon which the kernel looks the whole path up again.
const (
	epochShift = 42 // above the numbers of control files
	nodeMask   = 1<<epochShift - 1
	maxEpoch   = 1<<20 - 1 // then no number is as large as those that listings make up
)

// node returns the number by which the kernel knows a node.
func (s *Server) node(id uint64) uint64 {
	if id == fuse.FUSE_ROOT_ID {
		return id
	}
	return id | s.epoch
}

// ino returns the inode number of a node. No file of another file system has it: stillOpen tells files apart
// by it.
func (s *Server) ino(id uint64) uint64 { return id | max(s.epoch, 1<<epochShift) }

// ours turns the number of a node in a request into that of this epoch's engine. It
// reports whether the node is of this epoch.
func (s *Server) ours(node *uint64) bool {
	if *node <= fuse.FUSE_ROOT_ID { // 0: the request is about none
		return true
	}
	if *node&^nodeMask != s.epoch {
		return false
	}
	*node &= nodeMask
	return true
}

// admit turns the numbers in the request of n bytes in w.in into those that the engine
// knows. It returns false if it has answered the request itself, to fd, because that is
// about an earlier owner's node.
func (w *worker) admit(fd, n int) bool {
	s := w.d.s
	h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
	if h.Opcode == opcodeBatchForget {
		w.admitForgets(n)
		return true
	}
	control := isControl(h.NodeId & nodeMask)
	known := s.ours(&h.NodeId)
	type rename struct { // of RENAME; RENAME2 begins with the same
		fuse.InHeader
		newDir uint64
	}
	if (h.Opcode == opcodeRename || h.Opcode == opcodeRename2) && n >= int(unsafe.Sizeof(rename{})) {
		known = s.ours(&(*rename)(unsafe.Pointer(h)).newDir) && known
	}
	if known {
		return true
	}
	st := fuse.Status(syscall.ESTALE)
	switch h.Opcode {
	case opcodeForget, opcodeInterrupt:
		w.spin.from = time.Now()
		return false
	case opcodeRelease, opcodeReleasedir:
		st = fuse.OK
	case opcodeFlush:
		// Only files that commit at their close are flushed: what was written is lost.
		if st = fuse.EIO; control {
			st = fuse.OK
		}
	case opcodeGetattr:
		if n >= int(unsafe.Sizeof(fuse.GetAttrIn{})) && (*fuse.GetAttrIn)(unsafe.Pointer(h)).Flags()&fuse.FUSE_GETATTR_FH == 0 {
			st = s.stale.path(h.Pid)
		}
	case opcodeLookup, opcodeAccess, opcodeCreate, opcodeOpen:
		st = s.stale.path(h.Pid)
	}
	w.reply(fd, w.head(h.Unique, st, 0))
	w.spin.from = time.Now()
	return false
}

// admitForgets turns the numbers of a BATCH_FORGET of n bytes, and takes out those of other
// epochs.
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
		if f := &list[i]; !w.d.s.ours(&f.node) {
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

// takeOver has the kernel send again what an earlier owner read and did not answer, and
// look up again all names that it gave out. No request has been read yet by us, or it would
// come twice.
func (d *device) takeOver() error {
	if err := resend(d.fd); err != nil {
		return err
	}
	if err := notifyBare(d.fd, notifyIncEpoch); err != nil {
		// Then names that are cached are found out by ESTALE, one by one, and that a name is
		// absent is believed until EntryTimeout.
		d.log.Warn("the kernel cannot look up all names again", zap.Error(err))
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

// answerTime is how long a client may take to go on after its open was answered: until it does, the
// file has to be registered by which it was answered. Nothing tells when it has.
// To wait longer costs the memory of what is evicted meanwhile, so that memory which is full takes
// nothing more than the headroom. Then shortAnswerTime has to do.
var answerTime = 30 * time.Second // a variable for tests

// shortAnswerTime is answerTime once blocks are evicted that an earlier owner may have registered.
const shortAnswerTime = 2 * time.Second

// dropLater is dropBackings after answerTime.
func (s *Server) dropLater(first int32) {
	began := time.Now()
	t := time.NewTimer(answerTime)
	defer t.Stop()
	unknown := s.backings.unknown
	for {
		select {
		case <-unknown:
			unknown = nil
			t.Reset(min(answerTime, shortAnswerTime) - time.Since(began))
		case <-t.C:
			s.dropBackings(first)
			s.dropped.Store(s.ctx.Err() == nil)
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// dropBackings unregisters the files with numbers from first up to and without the first of
// ours. They were an earlier owner's; while they are registered, their memory is not freed
// when they are evicted. The kernel counts upwards. What clients have open stays open.
func (s *Server) dropBackings(first int32) {
	const end = 1<<31 - 1
	if first > s.firstBacking { // it began anew
		s.dropRange(first, end)
		first = 1
	}
	s.dropRange(first, s.firstBacking)
}

func (s *Server) dropRange(from, to int32) {
	for id := from; id < to && s.ctx.Err() == nil; id++ {
		if errno := s.channel.unregister(id); errno != 0 && errno != unix.ENOENT {
			s.log.Warn("unregister an earlier owner's backing file", zap.Error(errno))
			return
		}
	}
}
