package blobs

import (
	"context"
	"errors"
	iofs "io/fs"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// memory is a Store in memory that fails on demand.
type memory struct {
	mu     sync.Mutex
	files  map[string][]byte
	closed int
	broken error // of each Put and Get; Put writes nevertheless
}

func newMemory() *memory { return &memory{files: map[string][]byte{}} }

func (m *memory) Put(_ context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = append([]byte{}, data...)
	return m.broken
}

func (m *memory) Get(_ context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch got, ok := m.files[name]; {
	case m.broken != nil:
		return m.broken
	case !ok:
		return iofs.ErrNotExist
	default:
		copy(data, got)
		return nil
	}
}

func (m *memory) Delete(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

// change calls fn with the lock of the store held.
func (m *memory) change(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
}

// TestConformance runs the suite of all tiers over a store in memory. When the tier is closed, the store is so too,
// once, and has no file of a block that was replaced or removed (A35).
func TestConformance(t *testing.T) {
	suite.Run(t, func(t *testing.T) driver.Tier {
		m := newMemory()
		made := New("blobs", m).(*tier)
		t.Cleanup(func() {
			if m.closed != 1 || len(m.files) != len(made.copies) {
				t.Errorf("the store was closed %d times; it has %d files of %d blocks", m.closed, len(m.files), len(made.copies))
			}
		})
		return made
	}, suite.Options{
		Corrupt: func(t *testing.T, made driver.Tier, key block.Key) {
			v, m := made.(*tier).copies[key], made.(*tier).store.(*memory)
			m.change(func() { m.files[v.name][0] ^= 1 })
		},
	})
}

// do runs one job of one block and returns its outcome.
func do(t *testing.T, run func(*driver.Job), data string) driver.Outcome {
	t.Helper()
	fd, err := unix.MemfdCreate("block", 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "block")
	defer f.Close()
	if _, err := f.WriteAt([]byte(data), 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan *driver.Result, 1)
	run(&driver.Job{ID: 1, Done: func(r *driver.Result) { done <- r }, Blocks: []driver.Transfer{
		{Key: block.Key{Group: "g", Hash: "h"}, Size: int64(len(data)), Attrs: driver.Attrs{Seq: 1}, File: f},
	}})
	return (<-done).Outcomes[0]
}

// TestStoreFails shows what becomes of the errors of a store, and that a Put that failed leaves no file behind.
func TestStoreFails(t *testing.T) {
	m := newMemory()
	made := New("blobs", m)
	for _, tt := range []struct {
		broken error
		status driver.Status
		kind   error
	}{
		{block.ErrNoSpace, driver.Skipped, block.ErrNoSpace},
		{block.ErrTooLarge, driver.Failed, block.ErrTooLarge},
		{errors.New("no route to host"), driver.Failed, block.ErrUnavailable},
	} {
		m.change(func() { m.broken = tt.broken })
		if o := do(t, made.Store, "data"); o.Status != tt.status || !errors.Is(o.Err, tt.kind) {
			t.Errorf("Store, and the store says %v: %v, %v", tt.broken, o.Status, o.Err)
		}
	}
	m.change(func() { m.broken = nil })
	if o := do(t, made.Store, "data"); o.Status != driver.Stored {
		t.Fatalf("Store: %v, %v", o.Status, o.Err)
	}
	m.change(func() { m.broken = errors.New("no route to host") })
	if o := do(t, made.Load, "data"); o.Status != driver.Failed || !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("Load from a store that is away: %v, %v", o.Status, o.Err)
	}
	m.change(func() { m.broken = nil })
	if o := do(t, made.Load, "data"); o.Status != driver.Loaded {
		t.Errorf("Load: %v, %v", o.Status, o.Err)
	}
	m.change(func() { clear(m.files) })
	out := make([]driver.Presence, 1)
	if o := do(t, made.Load, "data"); o.Status != driver.Absent || o.Err != nil {
		t.Errorf("Load of a file that the store has lost: %v, %v", o.Status, o.Err)
	}
	if err := made.Lookup(t.Context(), []block.Key{{Group: "g", Hash: "h"}}, out); err != nil || out[0] != driver.Miss {
		t.Errorf("Lookup of that file: %v, %v", out[0], err)
	}
	if err := made.Close(t.Context()); err != nil || len(m.files) != 0 {
		t.Errorf("Close: %v; the store has %d files, want none", err, len(m.files))
	}
}

// stuck is a Store that answers only when its context ends.
type stuck struct {
	*memory
	asked chan struct{}
}

func (s stuck) Put(ctx context.Context, _ string, _ []byte) error {
	close(s.asked)
	<-ctx.Done()
	return ctx.Err()
}

// TestCloseCancels shows that the end of the context of Close ends the wait for a store that does not answer. Until then
// another Store of the same version is skipped, and not as one that the tier holds.
func TestCloseCancels(t *testing.T) {
	s := stuck{newMemory(), make(chan struct{})}
	made := New("blobs", s)
	ended := make(chan driver.Outcome, 1)
	go func() { ended <- do(t, made.Store, "data") }() // ends with Close
	<-s.asked
	if o := do(t, made.Store, "data"); o.Status != driver.Skipped || !errors.Is(o.Err, block.ErrPending) {
		t.Errorf("a second Store: %v, %v, want skipped and %v", o.Status, o.Err, block.ErrPending)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := made.Close(ctx); err != nil || s.closed != 1 {
		t.Errorf("Close: %v; the store was closed %d times", err, s.closed)
	}
	if o := <-ended; o.Status != driver.Failed || !errors.Is(o.Err, block.ErrClosed) {
		t.Errorf("Store: %v, %v, want %v", o.Status, o.Err, block.ErrClosed)
	}
}
