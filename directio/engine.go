package directio

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// Alignment is the alignment in bytes of memory, offset and length for O_DIRECT here. 4096 bytes
// suit all devices.
const Alignment = 4096

// Kind says what an Op does.
type Kind uint8

const (
	Read Kind = iota
	Write
	Sync // fdatasync of what was written before Do; Mem and Off are ignored
)

// Op is one operation of an Engine. The caller fills all fields but N and Err. It must not change
// the op, its memory or its file until Do returns. An op without bytes is a successful no-op.
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
	// Do starts all ops, reads ahead of writes. It returns when each op is done, or was taken back
	// because ctx ended first; Err is then ctx's error. It returns the first Err in the order of
	// ops, or nil. The ops of one Do run in any order and at the same time. An op that must come
	// after others, such as a Sync after its writes, needs a Do of its own.
	//
	// After Close ops fail with os.ErrClosed. Empty ops are a successful no-op.
	Do(ctx context.Context, ops []Op) error

	// Name returns the implementation: EngineUring or EnginePread.
	Name() string

	// Stuck returns for how long the oldest piece of an op has been with the kernel, 0 if none is.
	// Waiting pieces do not count.
	Stuck() time.Duration

	// Stats returns totals since Open.
	Stats() Stats

	// Close refuses new ops and fails waiting ones with os.ErrClosed. It returns when the kernel is
	// done with the others. If ctx ends first, it returns ctx's error, and leaks the memory that
	// the kernel may still write to. It logs the oldest op while it waits. It may be called again,
	// to wait on.
	Close(ctx context.Context) error
}

// Starter does ops without a goroutine that waits for them. For small reads such a goroutine costs
// more than the read. All engines of this package have it.
type Starter interface {
	// Start is Do, but it calls done once instead of waiting, and never from within Start. done
	// runs on the goroutine that reaps the device. It must be short and must not wait. It may call
	// Start again. The errors are in ops.
	Start(ops []Op, done func())

	// Run is Start for a caller that may wait. If the engine has nothing else to do, the first op is done by a system
	// call of the caller, which spares the goroutine that reaps the device. done may be called from within Run.
	Run(ops []Op, done func())
}

// Stats are totals of an Engine.
type Stats struct {
	Reads        uint64 `json:"reads" help:"reads that succeeded"`
	Writes       uint64 `json:"writes" help:"writes that succeeded"`
	Syncs        uint64 `json:"syncs" help:"syncs that succeeded"`
	ReadBytes    uint64 `json:"read_bytes" help:"bytes read, also by reads that failed later"`
	WriteBytes   uint64 `json:"written_bytes" help:"bytes written, likewise"`
	Continued    uint64 `json:"continued_ops" help:"short results that were continued"`
	Retried      uint64 `json:"retried_ops" help:"operations tried again"`
	Failed       uint64 `json:"failed_ops" help:"operations that failed"`
	InFlight     int64  `json:"in_flight" help:"pieces that the kernel works on"`
	InFlightPeak int64  `json:"in_flight_peak" help:"most pieces so far"`
}

// Options configures an Engine. The zero value works.
type Options struct {
	// Engine is auto, io_uring or pread. Empty means auto: io_uring where a NOP round trip works,
	// else pread, with one log line that says why. io_uring fails where auto would fall back.
	Engine string

	Entries       int   // io_uring: most pieces with the kernel at a time. Zero means 128. 8 to 4096.
	InFlightBytes int64 // most bytes with the kernel at a time. Zero means 8 MiB. At least ChunkBytes.
	ChunkBytes    int   // ops are cut into pieces of this size. Zero means 1 MiB. A multiple of Alignment up to 1 GiB.
	Threads       int   // pread: goroutines, each with a piece. Zero means 16. 1 to 1024.

	Logger *zap.Logger // nil means none
}
