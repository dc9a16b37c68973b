// Package faultio is a directio.Engine that fails as devices do, for tests of code that uses an
// Engine. It decorates a real engine, op by op:
//
//	Engine   asks a rule about each op and does to it what the rule says
//	Rule     returns a Fault for a Call; Nth and First make the usual ones
package faultio

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
)

// Call is an op that came to an Engine.
type Call struct {
	Seq     uint64 // from 1, among all ops of this Engine
	KindSeq uint64 // from 1, among those of this Kind
	Kind    directio.Kind
	File    *directio.File
	Off     int64
	Bytes   int // 0 for Sync
}

// Fault is what happens to an op. The zero value changes nothing. Fields may be combined. They take
// effect from top to bottom.
type Fault struct {
	Delay time.Duration // the op begins later, or not at all if ctx ends
	Stuck bool          // the op begins only after Release, whatever ctx says

	Err error // the op fails with it and moves nothing

	// Short ends the op after ShortBytes, rounded down to a multiple of
	// directio.Alignment: a read with io.ErrUnexpectedEOF, a write with
	// io.ErrShortWrite.
	Short      bool
	ShortBytes int

	Drop bool // a write or sync succeeds without being done
	Torn bool // of a write only the first half, in pages, is done; it succeeds

	// Flip inverts bit FlipBit of a read's result, or of what a write writes. FlipBit counts from
	// the beginning of the op's memory, modulo its size.
	Flip    bool
	FlipBit int
}

// Rule decides what happens to an op. It is called for one op at a time, in the order of Seq. It
// must not call the Engine.
type Rule func(Call) Fault

// Nth returns a Rule that applies f to the nth op of a kind, from 1.
func Nth(kind directio.Kind, n uint64, f Fault) Rule {
	return func(c Call) Fault {
		if c.Kind == kind && c.KindSeq == n {
			return f
		}
		return Fault{}
	}
}

// From returns a Rule that applies f to the nth op of a kind and to all later ones.
func From(kind directio.Kind, n uint64, f Fault) Rule {
	return func(c Call) Fault {
		if c.Kind == kind && c.KindSeq >= n {
			return f
		}
		return Fault{}
	}
}

// First returns a Rule that uses the first of rules that returns a fault.
func First(rules ...Rule) Rule {
	return func(c Call) Fault {
		for _, rule := range rules {
			if f := rule(c); f != (Fault{}) {
				return f
			}
		}
		return Fault{}
	}
}

// Engine is a directio.Engine with faults. Methods may be called in parallel.
type Engine struct {
	inner directio.Engine

	mu struct {
		sync.Mutex
		rule     Rule
		seq      uint64
		kinds    map[directio.Kind]uint64
		stuck    []time.Time   // start times, oldest first
		release  chan struct{} // closed by Release, then replaced
		injected uint64
		closed   bool
	}
}

var (
	_ directio.Engine  = (*Engine)(nil)
	_ directio.Starter = (*Engine)(nil)
)

// New decorates inner. Close closes inner too. A nil rule makes no faults.
func New(inner directio.Engine, rule Rule) *Engine {
	e := &Engine{inner: inner}
	e.mu.kinds = map[directio.Kind]uint64{}
	e.mu.release = make(chan struct{})
	e.SetRule(rule)
	return e
}

// SetRule replaces the rule for later ops. The counters continue.
func (e *Engine) SetRule(rule Rule) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.rule = rule
}

// Release lets all stuck ops begin.
func (e *Engine) Release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.mu.release)
	e.mu.release = make(chan struct{})
	e.mu.stuck = nil
}

// StuckOps returns how many ops wait for Release.
func (e *Engine) StuckOps() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.mu.stuck)
}

// Injected returns how many ops got a fault.
func (e *Engine) Injected() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.injected
}

// Do implements directio.Engine. It passes on all ops without a fault together, and each of the
// others alone, at the same time.
func (e *Engine) Do(ctx context.Context, ops []directio.Op) error {
	var clean []int
	var faulty sync.WaitGroup
	for i := range ops {
		f := e.ask(&ops[i])
		if f == (Fault{}) {
			clean = append(clean, i)
			continue
		}
		faulty.Go(func() { e.fail(ctx, &ops[i], f) })
	}
	batch := make([]directio.Op, len(clean))
	for j, i := range clean {
		batch[j] = ops[i]
	}
	if len(batch) > 0 {
		_ = e.inner.Do(ctx, batch) // the error is also in Err of an op
	}
	for j, i := range clean {
		ops[i] = batch[j]
	}
	faulty.Wait()
	for i := range ops {
		if ops[i].Err != nil {
			return ops[i].Err
		}
	}
	return nil
}

// Run implements directio.Starter. It calls done from within.
func (e *Engine) Run(ops []directio.Op, done func()) {
	_ = e.Do(context.Background(), ops) // errors are also in Err of the ops
	done()
}

// Start implements directio.Starter. It calls Do on a goroutine of its own.
func (e *Engine) Start(ops []directio.Op, done func()) {
	go func() { // ends when the ops do
		_ = e.Do(context.Background(), ops) // errors are also in Err of the ops
		done()
	}()
}

// ask counts op and asks the rule about it.
func (e *Engine) ask(op *directio.Op) Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.seq++
	e.mu.kinds[op.Kind]++
	switch {
	case e.mu.closed:
		return Fault{Err: os.ErrClosed}
	case e.mu.rule == nil:
		return Fault{}
	}
	c := Call{Seq: e.mu.seq, KindSeq: e.mu.kinds[op.Kind], Kind: op.Kind, File: op.File, Off: op.Off}
	if op.Kind != directio.Sync {
		c.Bytes = len(op.Mem)
	}
	f := e.mu.rule(c)
	if f != (Fault{}) {
		e.mu.injected++
	}
	return f
}

// fail applies f to op.
func (e *Engine) fail(ctx context.Context, op *directio.Op, f Fault) {
	op.N, op.Err = 0, nil
	if op.Err = e.wait(ctx, f); op.Err != nil {
		return
	}
	if op.Err = f.Err; op.Err != nil {
		return
	}
	size := len(op.Mem)
	if f.Short {
		size = min(f.ShortBytes&^(directio.Alignment-1), size)
	}
	switch {
	case f.Drop && op.Kind != directio.Read:
		if op.Kind == directio.Write {
			op.N = len(op.Mem)
		}
		return
	case f.Torn && op.Kind == directio.Write:
		e.part(ctx, op, len(op.Mem)/2&^(directio.Alignment-1), f)
		if op.Err == nil {
			op.N = len(op.Mem)
		}
		return
	}
	e.part(ctx, op, size, f)
	if f.Short && op.Err == nil && op.Kind != directio.Sync && size < len(op.Mem) {
		op.Err = io.ErrUnexpectedEOF
		if op.Kind == directio.Write {
			op.Err = io.ErrShortWrite
		}
	}
}

// part does the first size bytes of op. It flips a bit if f says so.
func (e *Engine) part(ctx context.Context, op *directio.Op, size int, f Fault) {
	one := []directio.Op{*op}
	one[0].Mem = op.Mem[:min(size, len(op.Mem))]
	bit := 0
	if f.Flip = f.Flip && size > 0 && op.Kind != directio.Sync; f.Flip {
		bit = f.FlipBit % (size * 8)
	}
	if f.Flip && op.Kind == directio.Write {
		// Flip in a copy: others may read the memory of a write, or it may be mapped for reading
		// only.
		bad, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			op.Err = os.NewSyscallError("mmap", err)
			return
		}
		defer func() { _ = unix.Munmap(bad) }()
		copy(bad, one[0].Mem)
		bad[bit/8] ^= 1 << (bit % 8)
		one[0].Mem = bad
	}
	_ = e.inner.Do(ctx, one) // the error is also in Err
	if f.Flip && op.Kind == directio.Read {
		op.Mem[bit/8] ^= 1 << (bit % 8)
	}
	op.N, op.Err = one[0].N, one[0].Err
}

// wait applies Delay and Stuck of f.
func (e *Engine) wait(ctx context.Context, f Fault) error {
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !f.Stuck {
		return nil
	}
	e.mu.Lock()
	release := e.mu.release
	e.mu.stuck = append(e.mu.stuck, time.Now())
	e.mu.Unlock()
	<-release
	return nil
}

// Name returns the name of the decorated engine.
func (e *Engine) Name() string { return e.inner.Name() }

// Stuck implements directio.Engine.
func (e *Engine) Stuck() time.Duration {
	d := e.inner.Stuck()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.mu.stuck) > 0 {
		d = max(d, time.Since(slices.MinFunc(e.mu.stuck, time.Time.Compare)), 1)
	}
	return d
}

// Stats returns those of the decorated engine.
func (e *Engine) Stats() directio.Stats { return e.inner.Stats() }

// Close implements directio.Engine. It also waits for stuck ops.
func (e *Engine) Close(ctx context.Context) error {
	for {
		e.mu.Lock()
		e.mu.closed = true
		release, stuck := e.mu.release, len(e.mu.stuck)
		e.mu.Unlock()
		if stuck == 0 {
			return e.inner.Close(ctx)
		}
		select {
		case <-release:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), e.inner.Close(ctx))
		}
	}
}
