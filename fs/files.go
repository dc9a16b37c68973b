package fs

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// files answers what the kernel of one mount asks: it is the device.Files of a Server, which makes it,
// and ends what it holds.
type files struct {
	fuse.RawFileSystem // answers ENOSYS to what the rest does not implement

	opts   *Options
	log    *zap.Logger
	engine *tiers.Engine
	ctx    context.Context // lives as long as the mount
	kernel kernel
	epoch  device.Epoch // part of each node's number
	procs  processes    // what is known about callers
	refs   *refs        // what the kernel holds of the engine; nil if the engine has no other kernel
	mount  uint32       // number among others; 0 if there are none
	others *Mounts      // of the same engine, with this one; nil if there are none

	tested   chan struct{} // opens of blocks wait until it is closed; nil: they do not wait
	direct   atomic.Bool   // passthrough is in effect; then there are backings
	splice   bool          // reads that are not passthrough are spliced; constant after Mount
	backings *backings
	handles  handleTable
	listings listings
	control  reserved
	access   access
	stale    staleThreads
	ops      opCounters
	waiters  sync.Pool // of *waiter, for look-ups: there are many, and few of them wait
}

// kernel is what answers to requests need of the kernel: see device.Conn.
type kernel interface {
	registrar
	MayBlock(unique uint64)
	ForgetName(parent uint64, name string)
	ForgetAttributes(node uint64)
	Flush(ctx context.Context)
}

// newFiles makes the files of a mount that ends with ctx.
func newFiles(ctx context.Context, engine *tiers.Engine, opts *Options) *files {
	f := &files{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), opts: opts, log: opts.Logger, engine: engine, ctx: ctx, procs: ourProc(),
	}
	f.handles.init()
	f.access.init(f)
	f.control.init(f)
	return f
}

// forget has the kernel forget a name in a directory; without a directory, the attributes of a file.
func (f *files) forget(parent, id index.ID, name string) {
	if parent == 0 {
		f.kernel.ForgetAttributes(f.epoch.Node(uint64(id)))
	} else {
		f.kernel.ForgetName(f.epoch.Node(uint64(parent)), name)
	}
}

// String names the file system in go-fuse's logs.
func (f *files) String() string { return "kvfs" }
