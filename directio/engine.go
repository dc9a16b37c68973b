package directio

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// Alignment is what O_DIRECT asks of memory, offset and length here, whatever the
// device would accept: 4096 bytes suit all of them.
const Alignment = 4096

// Kind says what an Op does.
type Kind uint8

const (
	Read Kind = iota
	Write
	Sync // fdatasync of what was written before Do; Mem and Off are ignored
)

// Op is one operation of an Engine. The caller fills all fields but N and Err, and
// leaves the op, its memory and its file alone until Do returns. What has no bytes
// is a successful no-op.
type Op struct {
	Kind Kind
	File *File
	Mem  []byte // from mmap, see "Memory"; address and length are multiples of Alignment
	Off  int64  // offset in the file, a multiple of Alignment

	N   int   // bytes moved from the beginning of Mem, without a gap; 0 for Sync
	Err error // nil if N is all; see "Results" in the package comment
}

// Engine does operations on the files of one device. Methods may be called in
// parallel.
type Engine interface {
	// Do starts all ops, reads ahead of writes, and returns when each is done or
	// was taken back because ctx ended first (Err is ctx's error then). It returns
	// the first Err in the order of ops, nil if there is none. The ops of one Do are
	// done in any order and at the same time: what must come after something
	// else, such as a Sync after its writes, goes in a Do of its own.
	//
	// After Close ops fail with os.ErrClosed. Empty ops are a successful no-op.
	Do(ctx context.Context, ops []Op) error

	// Name says which implementation this is: EngineUring or
	// EnginePread.
	Name() string

	// Stuck returns for how long the oldest piece of an op has been with the kernel,
	// 0 if none is. What waits for its turn does not count.
	Stuck() time.Duration

	// Stats returns totals since Open.
	Stats() Stats

	// Close refuses new ops, fails those that wait with os.ErrClosed, and returns when
	// the kernel is done with the others, or, with ctx's error, when ctx ends: then
	// what they use is leaked rather than freed under the kernel's hands. It may be
	// called again, to wait on. While it waits it logs the oldest op.
	Close(ctx context.Context) error
}

// Starter is the ability to do ops without a goroutine that waits for them, which for
// small reads costs more than the read. All engines of this package have it.
type Starter interface {
	// Start is Do, but calls done instead of waiting, once, and not from within Start.
	// done runs on the goroutine that reaps the device: it must be short, must not wait
	// for anything, and may call Start again. The errors are in ops.
	Start(ops []Op, done func())
}

// Stats are totals of an Engine.
type Stats struct {
	Reads, Writes, Syncs   uint64 // ops that succeeded
	ReadBytes, WriteBytes  uint64 // moved, also by ops that failed in the end
	Continued              uint64 // short results that were continued
	Retried                uint64 // EINTR, EAGAIN, EBUSY
	Failed                 uint64 // ops with an Err
	InFlight, InFlightPeak int64  // pieces with the kernel: see Options.ChunkBytes
}

// Options configures an Engine. The zero value works.
type Options struct {
	// Engine is auto, io_uring or pread. Empty means auto: io_uring where it works,
	// proven by a NOP round trip, else pread, with one log line that says why.
	// io_uring fails where auto would fall back.
	Engine string

	Entries       int   // io_uring: most pieces with the kernel at a time. Zero means 128. 8 to 4096.
	InFlightBytes int64 // most bytes with the kernel at a time. Zero means 8 MiB. At least ChunkBytes.
	ChunkBytes    int   // ops are cut into pieces of this size. Zero means 1 MiB. A multiple of Alignment up to 1 GiB.
	Threads       int   // pread: goroutines, each with a piece. Zero means 16. 1 to 1024.

	Logger *zap.Logger // nil means none
}
