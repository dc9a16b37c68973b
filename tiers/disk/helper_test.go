package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
)

// rig is a tier with engines that a test can make fail.
type rig struct {
	*Tier
	opts  Options
	dirs  []string
	mu    sync.Mutex
	fault map[string]*faultio.Engine // by directory; those of plainEngines are not here
}

// plainEngines has newRig use engines as they are, which can start operations without a
// goroutine that waits for them, as those of faultio cannot.
func plainEngines(o *Options) {
	o.Engine = func(ctx context.Context, _ string) (directio.Engine, error) { return directio.Open(ctx, o.DirectIO) }
}

// poolOf returns staging memory that is usable up to ratio.
func poolOf(t *testing.T, size int64, ratio float64) *directio.Pool {
	t.Helper()
	pool, err := directio.NewPool(directio.PoolOptions{SizeBytes: size, UsableRatio: ratio})
	must(t, err)
	t.Cleanup(func() { pool.Close() })
	return pool
}

// newRig opens a tier over n new directories of capacity bytes each. edit changes the
// options; nil changes nothing.
func newRig(t *testing.T, n int, capacity int64, edit func(*Options)) *rig {
	t.Helper()
	return newRigOf(t, n, capacity, edit, func(e *faultio.Engine) directio.Engine { return e })
}

// newRigOf returns a rig of n devices whose engines wrap may replace, to fail or to stall.
func newRigOf(t *testing.T, n int, capacity int64, edit func(*Options), wrap func(*faultio.Engine) directio.Engine) *rig {
	t.Helper()
	r := &rig{fault: make(map[string]*faultio.Engine)}
	r.opts = Options{Policy: "lru"}
	for range n {
		dir := t.TempDir()
		r.dirs = append(r.dirs, dir)
		r.opts.Devices = append(r.opts.Devices, DeviceOptions{Dir: dir, CapacityBytes: capacity})
	}
	if edit != nil {
		edit(&r.opts)
	}
	direct := r.opts.DirectIO
	if r.opts.Engine != nil {
		r.open(t)
		return r
	}
	r.opts.Engine = func(ctx context.Context, dir string) (directio.Engine, error) {
		inner, err := directio.Open(ctx, direct)
		if err != nil {
			return nil, err
		}
		e := faultio.New(inner, nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fault[dir] = e
		return wrap(e), nil
	}
	r.open(t)
	return r
}

// open opens the tier, again after a Close.
func (r *rig) open(t *testing.T) {
	t.Helper()
	tier, err := Open(context.Background(), r.opts)
	must(t, err)
	r.Tier = tier
	t.Cleanup(func() { _ = tier.Close(context.Background()) })
}

// checkpoint writes the indexes of all devices.
func (r *rig) checkpoint() (err error) {
	for _, d := range r.devices {
		err = errors.Join(err, d.checkpoint())
	}
	return err
}

// indexed returns how many slabs the tier has taken from an index, and not changed since.
func (r *rig) indexed() (n int) {
	r.Tier.mu.Lock()
	defer r.Tier.mu.Unlock()
	for _, d := range r.devices {
		for s := range d.mu.space.All() {
			if !s.Changed.Load() {
				n++
			}
		}
	}
	return n
}

// reopen closes the tier and opens it again.
func (r *rig) reopen(t *testing.T) {
	t.Helper()
	must(t, r.Close(context.Background()))
	r.open(t)
}

// engine returns the engine of device i.
func (r *rig) engine(i int) *faultio.Engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault[r.dirs[i]]
}

// rule sets the rule of all engines.
func (r *rig) rule(rule faultio.Rule) {
	for i := range r.dirs {
		if e := r.engine(i); e != nil {
			e.SetRule(rule)
		}
	}
}

// crash opens a tier on what the old one has written by now; nothing that it does
// later gets there.
func (r *rig) crash(t *testing.T) *rig {
	t.Helper()
	return r.crashWith(t, func(string) {})
}

// crashWith is crash where edit changes the copy of each directory.
func (r *rig) crashWith(t *testing.T, edit func(dir string)) *rig {
	t.Helper()
	next := &rig{opts: r.opts, fault: r.fault}
	next.opts.Devices = nil
	for i, dir := range r.dirs {
		to := t.TempDir()
		copyDir(t, dir, to)
		edit(to)
		next.dirs = append(next.dirs, to)
		o := r.opts.Devices[i]
		o.Dir = to
		next.opts.Devices = append(next.opts.Devices, o)
	}
	next.open(t)
	r.rule(nil)
	// One that has failed by its rule is left behind, unless its workers end at once.
	failed := slices.ContainsFunc(r.devices, func(d *device) bool { return d.port.IsDown() })
	if err := r.Close(context.Background()); err != nil && !(failed && errors.Is(err, block.ErrUnavailable)) {
		t.Errorf("Close of the tier that crashed: %v", err)
	}
	return next
}

// copyDir copies the files of a directory.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	names, err := os.ReadDir(from)
	must(t, err)
	for _, e := range names {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if os.IsNotExist(err) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), data, 0o600)
		}
		must(t, err)
	}
}

// slotOf returns the file and the offset of a block's data, and of its header.
func (r *rig) slotOf(t *testing.T, key block.Key) (path string, data, header int64) {
	t.Helper()
	r.Tier.mu.Lock()
	defer r.Tier.mu.Unlock()
	id := r.Tier.mu.slots.Find(key)
	if id == 0 {
		t.Fatalf("%v is not held", key)
	}
	at := r.Tier.mu.slots.Place(id)
	return at.Slab.Path, at.Data, at.Header
}

// flip inverts a bit of a file.
func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	must(t, f.Sync())
}
