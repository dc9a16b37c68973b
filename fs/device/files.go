package device

import (
	"os"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
)

// Files answers the requests of a mount. All methods may be called in parallel, on a thread that does
// nothing else meanwhile. What is asked and what is answered are the protocol's; nodes have
// numbers without an epoch in questions, and have to get theirs in answers (Epoch).
//
// LOOKUP, GETATTR, RELEASE, FLUSH, RENAME and all that takes microseconds is answered by the thread that reads requests, so
// that nobody else is read meanwhile: who waits there calls Conn.MayBlock with the number of the request before.
// The name that Lookup gets is valid until it returns.
//
// A request that is answered EINTR after Leave is left to the next owner; an OPENDIR always is.
type Files interface {
	fuse.RawFileSystem

	// OpenLater is Open of a block for reading, which may be answered later: then later is true, and
	// reply is sent once.
	OpenLater(in *fuse.OpenIn, out *fuse.OpenOut, reply Reply) (st fuse.Status, later bool)

	// Earlier returns what to tell a thread of which the path leads by a node of an earlier owner.
	Earlier(tid uint32) fuse.Status
}

// Options are what a Conn needs to know of a mount.
type Options struct {
	FSName     string // first column of mount tables. Empty means kvfs.
	AllowOther bool   // let other users in, checked by the kernel against modes and owners
	MaxWrite   int    // largest request in bytes. Zero means 1 MiB.
	Own        bool   // this process made the session, or was handed it, and keeps it

	Logger *zap.Logger // required
}

const (
	defaultMaxWrite = 1 << 20
	defaultFSName   = "kvfs"
)

// capHandleKillprivV2 is FUSE_HANDLE_KILLPRIV_V2, which go-fuse has no name for:
// it spares a GETXATTR of security.capability before the first write of each
// open file.
const capHandleKillprivV2 = 1 << 28

// protocol returns the options of the protocol. splice: replies are spliced.
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
		EnableLocks:    false, // the kernel's own locks do on one machine
		MaxStackDepth:  1,
		RememberInodes: false,
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_ASYNC_DIO | fuse.CAP_READDIRPLUS_AUTO |
			fuse.CAP_DIRECT_IO_ALLOW_MMAP | capHandleKillprivV2,
		IgnoreSecurityLabels: true,
	}
}

// panicked ends the process upon a bug of ours. To go on could mean to go on with
// a lock held, and every client would hang; a dead daemon is an error at once, and
// the next one adopts all committed blocks.
func panicked(log *zap.Logger, v any) fuse.Status {
	log.Error("panic in a request", zap.Any("panic", v), zap.Stack("stack"))
	go panic(v) // outside of go-fuse, which would recover it
	return fuse.EIO
}
