package directio

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// EngineFake is the name of a Fake. Open does not know it.
const EngineFake = "fake"

// FakeCall is one request to the fake kernel: a piece of an op.
type FakeCall struct {
	Seq   int // from 1, in the order in which pieces go to the kernel
	Kind  Kind
	File  *File
	Off   int64
	Bytes int // 0 for Sync
}

// FakeResult is what the fake kernel does with a FakeCall. The zero value does it.
type FakeResult struct {
	Errno unix.Errno    // is the result; nothing is moved
	Short bool          // move N bytes, less than asked for, and answer so
	N     int           // may be any length, also one that no device would give
	Delay time.Duration // before anything happens
	Hold  bool          // nothing happens until Release
}

// Fake is an Engine for tests: it really reads and writes files, by pread and pwrite,
// but a script decides when and with what result, piece by piece. All that the
// engines share, cutting, priorities, retries, draining, is the real thing.
type Fake struct {
	*scheduler
	script func(FakeCall) FakeResult

	held struct {
		sync.Mutex
		seq   int
		calls []heldCall
	}
}

var _ Engine = (*Fake)(nil)

type heldCall struct {
	call   FakeCall
	piece  *piece
	result FakeResult
}

// NewFake starts a Fake. Of o it uses Entries, InFlightBytes, ChunkBytes and Logger,
// and fails as Open does. script is called for each piece, one at a time, from a
// goroutine of its own; nil does everything as asked.
func NewFake(o Options, script func(FakeCall) FakeResult) (*Fake, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if script == nil {
		script = func(FakeCall) FakeResult { return FakeResult{} }
	}
	f := &Fake{scheduler: newScheduler(EngineFake, o.Entries, o), script: script}
	startWorkers(f.scheduler, 1, f.start)
	return f, nil
}

// start asks the script about p and does what it says.
func (f *Fake) start(p *piece) {
	f.held.Lock()
	f.held.seq++
	call := FakeCall{Seq: f.held.seq, Kind: p.req.op.Kind, File: p.req.op.File, Off: p.offset(), Bytes: p.size - p.moved}
	f.held.Unlock()
	r := f.script(call)
	switch {
	case r.Hold:
		f.held.Lock()
		f.held.calls = append(f.held.calls, heldCall{call, p, r})
		f.held.Unlock()
	case r.Delay > 0:
		time.AfterFunc(r.Delay, func() { f.answer(p, r) })
	default:
		f.answer(p, r)
	}
}

// answer does what r says and finishes p.
func (f *Fake) answer(p *piece, r FakeResult) {
	errno, n := r.Errno, 0
	if errno == 0 {
		if r.Short {
			n, errno = p.transferShort(r.N)
		} else {
			n, errno = p.transfer()
		}
	}
	f.finish(p, n, errno)
	f.wake()
}

// transferShort moves up to n bytes of p.
func (p *piece) transferShort(n int) (int, unix.Errno) {
	if n <= 0 || p.req.op.Kind == Sync {
		return 0, 0
	}
	// O_DIRECT moves whole pages; a read can stop in the last one, as at an end of
	// file.
	pages := piece{req: p.req, start: p.start, size: p.size, moved: p.moved}
	pages.size = min(p.moved+int(AlignUp(int64(n))), p.size)
	if p.req.op.Kind == Write {
		pages.size = p.moved + n&^(Alignment-1)
	}
	if pages.size == p.moved {
		return n, 0
	}
	moved, errno := pages.transfer()
	return min(moved, n), errno
}

// Held returns the calls that wait for Release, in the order of Seq.
func (f *Fake) Held() []FakeCall {
	f.held.Lock()
	defer f.held.Unlock()
	var calls []FakeCall
	for _, h := range f.held.calls {
		calls = append(calls, h.call)
	}
	return calls
}

// Release lets the held calls of the given Seqs happen, in that order, all of them
// without arguments. It returns when they have.
func (f *Fake) Release(seqs ...int) {
	f.held.Lock()
	var due []heldCall
	if len(seqs) == 0 {
		due, f.held.calls = f.held.calls, nil
	}
	for _, seq := range seqs {
		if i := slices.IndexFunc(f.held.calls, func(h heldCall) bool { return h.call.Seq == seq }); i >= 0 {
			due = append(due, f.held.calls[i])
			f.held.calls = slices.Delete(f.held.calls, i, i+1)
		}
	}
	f.held.Unlock()
	for _, h := range due {
		f.answer(h.piece, h.result)
	}
}
