package device

import (
	"os"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
)

// Files answers the requests of a mount. All methods may be called in parallel, each on a
// thread that does nothing else meanwhile. Requests and answers are those of the protocol. Node
// numbers have no epoch in requests; answers must add it (Epoch).
//
// The thread that reads requests also answers those that take microseconds: LOOKUP, GETATTR, RELEASE, FLUSH,
// RENAME and others. Nobody reads the next request meanwhile. So a method that may wait first calls
// Conn.MayBlock with the number of its request. The name that Lookup gets is valid until Lookup returns.
//
// A request that is answered EINTR after Leave is left to the next owner. An OPENDIR always is.
type Files interface {
	fuse.RawFileSystem

	// OpenLater is Open of a block for reading. If it returns later, the answer follows through
	// reply, which is then sent exactly once.
	OpenLater(in *fuse.OpenIn, out *fuse.OpenOut, reply Reply) (st fuse.Status, later bool)

	// Earlier returns the answer to a thread whose path leads through a node of an earlier owner.
	Earlier(tid uint32) fuse.Status
}

// Options describe a mount to a Conn.
type Options struct {
	FSName     string // first column of mount tables. Empty means kvfs.
	AllowOther bool   // let other users in, checked by the kernel against modes and owners
	MaxWrite   int    // largest request in bytes. Zero means 1 MiB.
	Own        bool   // this process made the session, or got it by a hand-over, and keeps it

	// Latencies counts how long requests take. Nil means not at all. MountHelper does not use it.
	Latencies *Latencies

	// Watch is shown the requests. Nil means nobody is. MountHelper does not use it.
	Watch *Watch

	Logger *zap.Logger // required
}

const (
	defaultMaxWrite = 1 << 20
	defaultFSName   = "kvfs"
)

// capHandleKillprivV2 is FUSE_HANDLE_KILLPRIV_V2, which go-fuse does not name. It saves a
// GETXATTR of security.capability before the first write of each open file.
const capHandleKillprivV2 = 1 << 28

// protocol returns the options of the protocol. With splice, replies are spliced.
func (o *Options) protocol(splice bool) *fuse.MountOptions {
	maxWrite, name := o.MaxWrite, o.FSName
	if maxWrite == 0 {
		maxWrite = defaultMaxWrite
	}
	if name == "" {
		name = defaultFSName
	}
	if splice {
		// A reply is spliced through a pipe of at most 1 MiB, with its header and
		// one page to spare.
		maxWrite = min(maxWrite, 1<<20-2*os.Getpagesize())
	}
	return &fuse.MountOptions{
		DisableSplice:  !splice,
		AllowOther:     o.AllowOther,
		FsName:         name,
		Name:           "kvfs",
		MaxWrite:       maxWrite,
		MaxReadAhead:   maxWrite,
		MaxBackground:  256,
		DirectMount:    os.Geteuid() == 0,
		PanicHandler:   func(v any) fuse.Status { return panicked(o.Logger, v) },
		Logger:         zap.NewStdLog(o.Logger),
		Options:        []string{"default_permissions"},
		DisableXAttrs:  false,
		EnableLocks:    false, // the kernel's own locks suffice on one machine
		MaxStackDepth:  1,
		RememberInodes: false,
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_ASYNC_DIO | fuse.CAP_READDIRPLUS_AUTO |
			fuse.CAP_DIRECT_IO_ALLOW_MMAP | capHandleKillprivV2,
		IgnoreSecurityLabels: true,
	}
}

// panicked ends the process upon a bug of ours. If it went on, a lock could stay held and every client would
// hang. A dead daemon is an error at once, and the next one adopts all committed blocks.
func panicked(log *zap.Logger, v any) fuse.Status {
	log.Error("panic in a request", zap.Any("panic", v), zap.Stack("stack"))
	go panic(v) // outside of go-fuse, which would recover it
	return fuse.EIO
}
