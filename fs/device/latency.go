package device

import (
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/latency"
)

// Op is a FUSE operation, for counting.
type Op uint8

// The operations that are told apart.
const (
	OpOther Op = iota
	OpLookup
	OpForget
	OpGetattr
	OpSetattr
	OpMkdir
	OpMknod
	OpUnlink
	OpRmdir
	OpRename
	OpAccess
	OpGetxattr
	OpSetxattr
	OpListxattr
	OpRemovexattr
	OpCreate
	OpOpen
	OpRead
	OpWrite
	OpFlush
	OpFsync
	OpFallocate
	OpLseek
	OpRelease
	OpOpendir
	OpReaddir
	OpReaddirplus
	OpReleasedir
	OpFsyncdir
	OpStatfs
	NumOps // how many there are
)

// ops has the name of each Op, and its opcodes in include/uapi/linux/fuse.h.
var ops = [NumOps]struct {
	name    string
	opcodes []uint32
}{
	OpOther: {"OTHER", nil}, OpLookup: {"LOOKUP", []uint32{1}}, OpForget: {"FORGET", []uint32{2, 42}},
	OpGetattr: {"GETATTR", []uint32{3}}, OpSetattr: {"SETATTR", []uint32{4}}, OpMkdir: {"MKDIR", []uint32{9}},
	OpMknod: {"MKNOD", []uint32{8}}, OpUnlink: {"UNLINK", []uint32{10}}, OpRmdir: {"RMDIR", []uint32{11}},
	OpRename: {"RENAME", []uint32{12, 45}}, OpAccess: {"ACCESS", []uint32{34}}, OpGetxattr: {"GETXATTR", []uint32{22}},
	OpSetxattr: {"SETXATTR", []uint32{21}}, OpListxattr: {"LISTXATTR", []uint32{23}}, OpRemovexattr: {"REMOVEXATTR", []uint32{24}},
	OpCreate: {"CREATE", []uint32{35}}, OpOpen: {"OPEN", []uint32{14}}, OpRead: {"READ", []uint32{15}},
	OpWrite: {"WRITE", []uint32{16}}, OpFlush: {"FLUSH", []uint32{25}}, OpFsync: {"FSYNC", []uint32{20}},
	OpFallocate: {"FALLOCATE", []uint32{43}}, OpLseek: {"LSEEK", []uint32{46}}, OpRelease: {"RELEASE", []uint32{18}},
	OpOpendir: {"OPENDIR", []uint32{27}}, OpReaddir: {"READDIR", []uint32{28}}, OpReaddirplus: {"READDIRPLUS", []uint32{44}},
	OpReleasedir: {"RELEASEDIR", []uint32{29}}, OpFsyncdir: {"FSYNCDIR", []uint32{30}}, OpStatfs: {"STATFS", []uint32{17}},
}

// String returns the name of the operation in the protocol: "LOOKUP".
func (o Op) String() string { return ops[o].name }

// byOpcode has the Op of each opcode.
var byOpcode = func() (of [64]Op) {
	for op := range ops {
		for _, code := range ops[op].opcodes {
			of[code] = Op(op)
		}
	}
	return of
}()

// opOf returns the Op of an opcode.
func opOf(opcode uint32) Op {
	if opcode < uint32(len(byOpcode)) {
		return byOpcode[opcode]
	}
	return OpOther
}

// latencyShards is how many threads can count at once without sharing a cache line.
const latencyShards = 8

// Latencies counts how long requests of the kernel take, from when they are read to when they are answered. Several
// mounts may share one. The zero value is ready. Its methods may be called in parallel.
type Latencies struct {
	shards [latencyShards]latencyShard
	next   atomic.Uint32 // shard of the next worker
}

// latencyShard is the part of Latencies that one thread counts in, or some.
type latencyShard [NumOps]latency.Histogram

// shard returns a shard for a new worker.
func (l *Latencies) shard() *latencyShard { return &l.shards[l.next.Add(1)%latencyShards] }

// Observe counts a request that took d.
func (l *Latencies) Observe(op Op, d time.Duration) {
	l.shards[rand.Uint32()%latencyShards][op].Observe(d)
}

// All yields the operations that occurred, with their times.
func (l *Latencies) All() iter.Seq2[Op, *latency.Counts] {
	return func(yield func(Op, *latency.Counts) bool) {
		for op := range NumOps {
			var c latency.Counts
			for i := range l.shards {
				l.shards[i][op].AddTo(&c)
			}
			if c.Total() > 0 && !yield(op, &c) {
				return
			}
		}
	}
}
