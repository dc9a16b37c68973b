package fs

import "sync/atomic"

// op numbers the FUSE operations that are counted.
type op int

const (
	opLookup op = iota
	opForget
	opGetattr
	opSetattr
	opMkdir
	opMknod
	opUnlink
	opRmdir
	opRename
	opAccess
	opGetxattr
	opSetxattr
	opListxattr
	opRemovexattr
	opCreate
	opOpen
	opRead
	opWrite
	opFlush
	opFsync
	opFallocate
	opLseek
	opRelease
	opOpendir
	opReaddir
	opReaddirplus
	opReleasedir
	opFsyncdir
	opStatfs
	opOther
	numOps
)

var opNames = [numOps]string{
	"LOOKUP", "FORGET", "GETATTR", "SETATTR", "MKDIR", "MKNOD", "UNLINK", "RMDIR", "RENAME", "ACCESS",
	"GETXATTR", "SETXATTR", "LISTXATTR", "REMOVEXATTR", "CREATE", "OPEN", "READ", "WRITE", "FLUSH", "FSYNC",
	"FALLOCATE", "LSEEK", "RELEASE", "OPENDIR", "READDIR", "READDIRPLUS", "RELEASEDIR", "FSYNCDIR", "STATFS", "OTHER",
}

// opCounters counts requests of the kernel by operation.
type opCounters [numOps]atomic.Uint64

func (c *opCounters) add(o op) { c[o].Add(1) }

// snapshot returns the operations that occurred.
func (c *opCounters) snapshot() map[string]uint64 {
	m := map[string]uint64{}
	for i := range c {
		if n := c[i].Load(); n > 0 {
			m[opNames[i]] = n
		}
	}
	return m
}
