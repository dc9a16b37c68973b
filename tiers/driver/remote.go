package driver

import (
	"context"
	"syscall"

	"github.com/kvfs/kvfs/tiers/block"
)

// Remote is the ability of a tier to hold blocks that this engine never gave it: those
// of other nodes. The engine has no entries for them until somebody asks for their
// names; at most one secondary tier has it.
//
// None of its methods blocks, but List. Locate, Buried, Watch, Unwatch and Bury are also called
// with the lock of the engine held, so that no method of the engine or its Host may be called from
// within, nor any that waits for somebody who does. Bury is called before the lock is
// released under which a name went, so that no look-up finds its old versions elsewhere;
// what follows from it for watched keys the tier tells later.
type Remote interface {
	Tier

	// Locate tells what a path below the mount means elsewhere. It answers from memory.
	Locate(path string) (Located, bool)

	// Watch has Host.Lost called once with ErrUnavailable when nobody elsewhere holds the
	// block or directory, or when that is so already. Unwatch ends that; it does nothing
	// for what is not watched.
	Watch(key block.Key)
	Unwatch(key block.Key)

	// Bury makes void, everywhere, all versions of some names below a number each.
	Bury(graves []Grave)

	// Buried returns the number below which the versions of a path are void; 0 if none are.
	Buried(path string) uint64

	// List calls fn for each name that others hold in a directory, in any order, possibly
	// several times for one, until it returns false. It blocks on the network, at most as
	// long as ctx, and reports what could not be reached only if nothing could.
	List(ctx context.Context, dir string, fn func(name string, l *Located) bool) error
}

// Asker is the ability of a Remote that does not know all names by itself. A Remote without it does: what Locate does
// not find, no other node has.
type Asker interface {
	// Unknown reports whether Locate may find nothing at a path although other nodes have something: Ask would tell. It
	// answers from memory, and is called with the lock of the engine held, too.
	Unknown(path string) bool

	// Ask asks other nodes about paths, which are different. Afterwards Locate tells what they have, for some seconds. It
	// blocks on the network, for half a second at most, or until ctx ends. It reports nothing: a path about which nobody
	// answers stays unknown, a miss. The engine holds no lock. It may ask about one path several times in parallel.
	Ask(ctx context.Context, paths []string)
}

// Located is what a path means to a Remote or a Finder: the attributes of its latest version.
type Located struct {
	Seq   uint64
	Size  int64  // bytes
	Mode  uint32 // type and permission bits, as st_mode
	UID   uint32
	GID   uint32
	Mtime int64 // nanoseconds since the epoch

	Expires int64 // likewise, of what a Finder has; 0: never
}

// IsDir reports whether it is a directory.
func (l *Located) IsDir() bool { return l.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// IsRegular reports whether it is a regular file.
func (l *Located) IsRegular() bool { return l.Mode&syscall.S_IFMT == syscall.S_IFREG }

// Grave says that the versions of a name below Seq are void.
type Grave struct {
	Path string
	Dir  bool
	Seq  uint64
}
