package directio

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func newPool(t *testing.T, sizeBytes int64, ratio float64) *Pool {
	t.Helper()
	p, err := NewPool(PoolOptions{SizeBytes: sizeBytes, UsableRatio: ratio})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// TestPoolOptions shows what ratios and sizes are refused (B8).
func TestPoolOptions(t *testing.T) {
	for _, o := range []PoolOptions{
		{}, {SizeBytes: 4096}, {UsableRatio: 1}, {4095, 1}, {-1, 1}, {math.MaxInt64, 1},
		{4096, -0.1}, {4096, 1.0001}, {4096, math.NaN()}, {4096, math.Inf(1)},
	} {
		if p, err := NewPool(o); !errors.Is(err, os.ErrInvalid) || p != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := NewPool(PoolOptions{SizeBytes: -1, UsableRatio: 2}); err == nil || strings.Count(err.Error(), "want") != 2 {
		t.Errorf("two bad options: %v", err)
	}
}

// TestPoolBudget shows the budget's size, that all of it can be had, and that more
// fails at once with an error that names need, budget and option (B8, B14, B16).
func TestPoolBudget(t *testing.T) {
	for _, c := range []struct {
		size   int64
		ratio  float64
		budget int64
	}{
		{1 << 20, 1, 1 << 20}, {1 << 20, 0.5, 1 << 19}, {10 << 20, 0.9, 9437184}, {8192, 0.75, 6144},
	} {
		p := newPool(t, c.size, c.ratio)
		if p.BudgetBytes() != c.budget {
			t.Errorf("%+v: budget %d", c, p.BudgetBytes())
		}
		all := int(c.budget) &^ (Alignment - 1)
		b, err := p.Acquire(t.Context(), all)
		must(t, err)
		if m := b.Bytes(); len(m) != all || uintptr(unsafe.Pointer(&m[0]))%Alignment != 0 || p.UsedBytes() != int64(all) {
			t.Errorf("%d bytes at %p, %d used", len(m), &m[0], p.UsedBytes())
		}
		// With the pool used up: none of these may wait.
		for _, over := range []struct {
			need   int64
			option string
		}{{c.budget + 1, "staging.usable_ratio"}, {c.size + 1, "staging.size"}, {math.MaxInt64, "staging.size"}} {
			if over.need <= c.size && c.ratio == 1 {
				continue
			}
			if c.ratio == 1 {
				over.option = "staging.size"
			}
			_, err := p.Acquire(t.Context(), int(over.need))
			var budget *BudgetError
			if !errors.As(err, &budget) || budget.Need < over.need || budget.Budget != c.budget || budget.Option != over.option {
				t.Errorf("%+v, %d bytes: %v", c, over.need, err)
			}
		}
		b.Release()
	}
	p := newPool(t, 8192, 0.5)
	err := p.Check("model/abc", 5000)
	for _, word := range []string{"model/abc", "5000", "4096", "staging.usable_ratio"} {
		if !strings.Contains(err.Error(), word) { // the text is what people see
			t.Errorf("%q lacks %q", err, word)
		}
	}
	must(t, p.Check("model/abc", 4096))
	if _, err := p.Acquire(t.Context(), -1); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("negative: %v", err)
	}
}

// acquireAsync begins an Acquire and returns once it waits.
func acquireAsync(t *testing.T, ctx context.Context, p *Pool, n int) <-chan *Buffer {
	t.Helper()
	waiting := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.mu.waiters)
	}
	before, got := waiting(), make(chan *Buffer, 1)
	go func() {
		b, err := p.Acquire(ctx, n)
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		got <- b
	}()
	eventually(t, "Acquire to wait", func() bool { return waiting() > before })
	return got
}

// TestPoolFIFO shows that a small request does not overtake a large one that came
// first, that one that is given up lets those behind it go on, and that Close fails
// the rest (B17).
func TestPoolFIFO(t *testing.T) {
	p := newPool(t, 4*4096, 1)
	b, err := p.Acquire(t.Context(), 2*4096)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	large := acquireAsync(t, t.Context(), p, 3*4096)
	gone := acquireAsync(t, ctx, p, 2*4096)
	small := acquireAsync(t, t.Context(), p, 4096)
	if p.UsedBytes() != 2*4096 {
		t.Errorf("%d bytes used: somebody overtook", p.UsedBytes())
	}
	b.Release()
	l := <-large
	if len(gone)+len(small) > 0 || p.UsedBytes() != 3*4096 {
		t.Errorf("%d bytes used: somebody overtook", p.UsedBytes())
	}
	cancel()
	if b := <-gone; b != nil {
		t.Error("a buffer for a context that has ended")
	}
	s := <-small // it fits beside the large one
	last := acquireAsync(t, t.Context(), p, 4*4096)
	must(t, p.Close())
	if b := <-last; b != nil {
		t.Error("a buffer after Close")
	}
	if _, err := p.Acquire(t.Context(), 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Acquire after Close: %v", err)
	}
	l.Bytes()[0], s.Bytes()[4095] = 1, 1 // memory stays until the last Release
	l.Release()
	s.Release()
	if p.mapping != nil {
		t.Error("memory kept after Close and the last Release")
	}
	defer func() {
		if recover() == nil {
			t.Error("a second Release did not panic")
		}
	}()
	l.Release()
}

// TestPoolStorm has many goroutines take and return buffers of all sizes, some giving
// up, and shows that no two share a byte, that all get served, and that the pool is
// whole at the end.
func TestPoolStorm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const pages = 64
	p := newPool(t, pages*4096, 0.75)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 300 {
				n := rnd.IntN(pages*4096*3/4) + 1
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(4) == 0 {
					go cancel()
				}
				b, err := p.Acquire(ctx, n)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					cancel()
					continue
				}
				m := b.Bytes()
				for i := 0; i < n; i += 4096 {
					m[i] = byte(w)
				}
				m[n-1] = byte(w)
				for i := 0; i < n; i += 4096 {
					if m[i] != byte(w) {
						t.Errorf("byte %d of mine belongs to %d", i, m[i])
					}
				}
				b.Release()
				cancel()
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.used != 0 || p.mu.out != 0 || len(p.mu.free) != 1 || p.mu.free[0] != (extent{0, pages * 4096}) {
		t.Errorf("at the end: %+v", p.mu.free)
	}
}
