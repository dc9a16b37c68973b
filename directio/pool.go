package directio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePageBytes = 2 << 20

// PoolOptions configures a Pool. Both fields are required: the owner decides how much memory
// staging may use.
type PoolOptions struct {
	// SizeBytes is the memory of the pool, at least Alignment. It is rounded up to a multiple of
	// Alignment.
	SizeBytes int64

	// UsableRatio is the part of SizeBytes that may be in use at a time, above 0 and up to 1. The
	// rest makes up for gaps between buffers.
	UsableRatio float64
}

// BudgetError says that an item can never be staged: it needs more than the whole budget.
type BudgetError struct {
	Key    string // item to stage; empty if the pool does not know it
	Need   int64  // bytes
	Budget int64  // bytes, of the pool
	Option string // option to raise: "staging.size" or "staging.usable_ratio"
}

// Error names the key, the need, the budget and the option.
func (e *BudgetError) Error() string {
	key := e.Key
	if key == "" {
		key = "a buffer"
	}
	return fmt.Sprintf("directio: %s needs %d bytes of staging, the budget is %d: raise %s", key, e.Need, e.Budget, e.Option)
}

// Pool lends aligned buffers from one anonymous mapping, under a budget in bytes. The mapping has
// huge pages where the kernel has them. Methods may be called in parallel.
type Pool struct {
	sizeBytes   int64
	budgetBytes int64
	mapping     []byte // as mapped: Munmap accepts nothing else
	arena       []byte // sizeBytes of the mapping, from a huge page on

	mu struct {
		sync.Mutex
		used    int64
		out     int       // buffers
		free    []extent  // ascending, no two adjacent
		waiters []*waiter // first come first served
		closed  bool
	}
}

// extent is a range of the arena.
type extent struct{ off, size int64 }

// waiter is an Acquire that waits. Its buffer is set before ready is closed.
type waiter struct {
	need  int64
	size  int
	buf   *Buffer
	err   error
	ready chan struct{}
}

// NewPool maps the memory of a pool. The kernel allocates pages at their first use. It fails with
// os.ErrInvalid for options out of range, and with the errno of mmap.
func NewPool(o PoolOptions) (*Pool, error) {
	var errs []error
	if o.SizeBytes < Alignment || o.SizeBytes > 1<<62 {
		errs = append(errs, fmt.Errorf("directio: SizeBytes %d: want %d or more: %w", o.SizeBytes, Alignment, os.ErrInvalid))
	}
	if !(o.UsableRatio > 0 && o.UsableRatio <= 1) { // so that NaN fails
		errs = append(errs, fmt.Errorf("directio: UsableRatio %v: want above 0, up to 1: %w", o.UsableRatio, os.ErrInvalid))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p := &Pool{sizeBytes: AlignUp(o.SizeBytes)}
	p.budgetBytes = int64(float64(o.SizeBytes) * o.UsableRatio)
	p.mu.free = []extent{{0, p.sizeBytes}}
	m, err := unix.Mmap(-1, 0, int(p.sizeBytes+hugePageBytes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("directio: %d bytes of staging: %w", p.sizeBytes, os.NewSyscallError("mmap", err))
	}
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE) // fails with EINVAL if the kernel has none: works, but slower
	at := uintptr(unsafe.Pointer(unsafe.SliceData(m)))
	first := int64(-at % hugePageBytes)
	p.mapping, p.arena = m, m[first:first+p.sizeBytes]
	return p, nil
}

// BudgetBytes returns how many bytes can be in use at a time.
func (p *Pool) BudgetBytes() int64 { return p.budgetBytes }

// Check returns a *BudgetError about key if need bytes exceed the budget.
func (p *Pool) Check(key string, need int64) error {
	if need <= p.budgetBytes {
		return nil
	}
	option := "staging.size"
	if need <= p.sizeBytes {
		option = "staging.usable_ratio"
	}
	return &BudgetError{Key: key, Need: need, Budget: p.budgetBytes, Option: option}
}

// Acquire lends a buffer of n bytes. AlignUp(n) bytes count against the budget. It waits for its
// turn: first come, first served, whatever the sizes. A caller that needs several buffers at a time
// must ask for their sum at once. Else two callers could wait for each other for ever.
//
// It fails at once with a *BudgetError if n exceeds the budget, and with os.ErrInvalid if n is
// negative. While it waits it fails with the error of ctx, and after Close with os.ErrClosed. The
// buffer holds what its last user left in it.
func (p *Pool) Acquire(ctx context.Context, n int) (*Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("directio: buffer of %d bytes: %w", n, os.ErrInvalid)
	}
	if int64(n) > p.budgetBytes {
		return nil, p.Check("", int64(n))
	}
	need := AlignUp(max(int64(n), 1))
	if need > p.budgetBytes {
		return nil, p.Check("", need)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &waiter{need: need, size: n, ready: make(chan struct{})}
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil, os.ErrClosed
	}
	p.mu.waiters = append(p.mu.waiters, w)
	p.serveLocked()
	p.mu.Unlock()

	select {
	case <-w.ready:
		return w.buf, w.err
	case <-ctx.Done():
		return nil, p.leave(w, ctx.Err())
	}
}

// TryAcquire is Acquire without waiting. It returns nil if it would have to wait.
func (p *Pool) TryAcquire(n int) *Buffer {
	if n < 0 || int64(n) > p.budgetBytes {
		return nil
	}
	w := &waiter{need: AlignUp(max(int64(n), 1)), size: n}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || len(p.mu.waiters) > 0 {
		return nil
	}
	p.lendLocked(w)
	return w.buf
}

// leave takes w out of the queue, or returns the buffer that w got meanwhile.
func (p *Pool) leave(w *waiter, err error) error {
	p.mu.Lock()
	i := slices.Index(p.mu.waiters, w)
	if i >= 0 {
		p.mu.waiters = slices.Delete(p.mu.waiters, i, i+1)
		p.serveLocked() // w may have blocked those behind it
	}
	p.mu.Unlock()
	if i < 0 {
		<-w.ready
		if w.buf != nil {
			w.buf.Release()
		}
	}
	return err
}

// serveLocked lends to the first waiters as long as there is room.
func (p *Pool) serveLocked() {
	for len(p.mu.waiters) > 0 {
		w := p.mu.waiters[0]
		if !p.lendLocked(w) {
			return
		}
		p.mu.waiters = slices.Delete(p.mu.waiters, 0, 1)
		close(w.ready)
	}
}

// lendLocked lends to w if there is room.
func (p *Pool) lendLocked(w *waiter) bool {
	if p.mu.used+w.need > p.budgetBytes {
		return false
	}
	off, ok := p.fitLocked(w.need)
	if !ok {
		return false
	}
	p.mu.used += w.need
	p.mu.out++
	end := off + int64(w.size)
	w.buf = &Buffer{pool: p, extent: extent{off, w.need}, mem: p.arena[off : end : end+w.need-int64(w.size)]}
	return true
}

// fitLocked cuts need bytes from the smallest free extent that has them.
func (p *Pool) fitLocked(need int64) (int64, bool) {
	best := -1
	for i, e := range p.mu.free {
		if e.size >= need && (best < 0 || e.size < p.mu.free[best].size) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	e := &p.mu.free[best]
	off := e.off
	e.off += need
	e.size -= need
	if e.size == 0 {
		p.mu.free = slices.Delete(p.mu.free, best, best+1)
	}
	return off, true
}

// returnLocked makes e free, merged with its neighbours.
func (p *Pool) returnLocked(e extent) {
	i, _ := slices.BinarySearchFunc(p.mu.free, e, func(a, b extent) int { return int(min(max(a.off-b.off, -1), 1)) })
	p.mu.free = slices.Insert(p.mu.free, i, e)
	if i+1 < len(p.mu.free) && e.off+e.size == p.mu.free[i+1].off {
		p.mu.free[i].size += p.mu.free[i+1].size
		p.mu.free = slices.Delete(p.mu.free, i+1, i+2)
	}
	if i > 0 && p.mu.free[i-1].off+p.mu.free[i-1].size == e.off {
		p.mu.free[i-1].size += p.mu.free[i].size
		p.mu.free = slices.Delete(p.mu.free, i, i+1)
	}
}

// Close fails the waiting calls with os.ErrClosed. It unmaps the memory once the last buffer is
// released. That may never happen: the kernel could still write to it.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil
	}
	p.mu.closed = true
	for _, w := range p.mu.waiters {
		w.err = os.ErrClosed
		close(w.ready)
	}
	p.mu.waiters = nil
	return p.unmapLocked()
}

// unmapLocked unmaps the memory if nothing uses it any more.
func (p *Pool) unmapLocked() error {
	if !p.mu.closed || p.mu.out > 0 {
		return nil
	}
	m := p.mapping
	p.mapping, p.arena = nil, nil
	return os.NewSyscallError("munmap", unix.Munmap(m))
}

// Buffer is memory lent by a Pool.
type Buffer struct {
	pool   *Pool
	extent extent
	mem    []byte
}

// Bytes returns the memory. It has the length asked for. Its address and capacity are multiples of
// Alignment. It must not be used after Release.
func (b *Buffer) Bytes() []byte { return b.mem }

// Release returns the buffer. The kernel must be done with it. A second call panics.
func (b *Buffer) Release() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.mem == nil {
		panic("directio: buffer released twice")
	}
	b.mem = nil
	p.mu.used -= b.extent.size
	p.mu.out--
	p.returnLocked(b.extent)
	p.serveLocked()
	_ = p.unmapLocked() // fails only for memory that is not mapped
}
