// Package blobs is a tier over any store that can put, get and delete files as a whole: a directory, an object store,
// a key-value store. To add such a type of tier, write a Store and a driver.Opener. docs/examples/tier does it.
//
// The tier remembers in memory which blocks the store has. It begins empty: blocks do not outlive the process. It has
// no limit and evicts nothing. Each job has a goroutine; the engine limits the number of jobs.
package blobs

import (
	"context"
	"errors"
	iofs "io/fs"
	"strconv"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Store has files, as a whole, by names that the tier makes: decimal numbers, none of them used twice. Its methods
// may be called in parallel and may block; ctx ends when the tier must not wait any longer.
type Store interface {
	// Put writes a file. It may fail with block.ErrNoSpace or block.ErrTooLarge; any other error is an outage. What
	// a failed Put has written may remain: Delete follows.
	Put(ctx context.Context, name string, data []byte) error
	// Get reads a file into data, which has its length. It fails with fs.ErrNotExist if the store has lost the file.
	// It need not check the bytes: the tier compares the checksum.
	Get(ctx context.Context, name string, data []byte) error
	// Delete removes a file, which may not be there. Only Close waits for it.
	Delete(name string)
	// Close is the last call. The tier has no use for any file by then.
	Close() error
}

// New returns a tier over a store, which it closes. name is that of the tier, in errors.
func New(name string, store Store) driver.Tier {
	t := &tier{name: name, store: store, copies: map[block.Key]*version{}}
	t.late, t.giveUp = context.WithCancel(context.Background())
	t.end = sync.OnceValue(t.finish)
	return t
}

// tier is the tier of New.
type tier struct {
	name   string
	store  Store
	end    func() error
	jobs   sync.WaitGroup  // jobs, and files that are being deleted
	late   context.Context // ends when Close waits no longer
	giveUp context.CancelFunc

	mu     sync.Mutex
	closed bool
	made   uint64                 // versions
	copies map[block.Key]*version // by the last Store that was not undone by Remove
}

// version is one version of a block. Fields are constant once it is ready.
type version struct {
	name  string // in the store
	seq   uint64
	size  int64
	sum   block.Checksum
	ready bool // the store has it. Guarded by tier.mu
}

// Lookup implements driver.Tier.
func (t *tier) Lookup(_ context.Context, keys []block.Key, out []driver.Presence) error {
	clear(out)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return t.fail("lookup", block.Key{}, block.ErrClosed)
	case len(keys) != len(out):
		return t.fail("lookup", block.Key{}, block.ErrInvalid)
	}
	for i, key := range keys {
		if v := t.copies[key]; v != nil && v.ready {
			out[i] = driver.Hit
		} else if v != nil {
			out[i] = driver.Pending
		}
	}
	return nil
}

// Store implements driver.Tier. The last Store of a key gives it its version at once, so that an earlier one that
// ends later changes nothing.
func (t *tier) Store(job *driver.Job) {
	versions := make([]*version, len(job.Blocks))
	errs := make([]error, len(job.Blocks)) // of blocks without a version here
	t.begin("store", job, func(i int, b *driver.Transfer) {
		switch v := t.copies[b.Key]; {
		case v != nil && v.seq == b.Attrs.Seq && !v.ready:
			errs[i] = block.ErrPending
		case v == nil || v.seq != b.Attrs.Seq:
			t.dropLocked(b.Key)
			t.made++
			versions[i] = &version{name: strconv.FormatUint(t.made, 10), seq: b.Attrs.Seq, size: b.Size}
			t.copies[b.Key] = versions[i]
		}
	}, func(i int, b *driver.Transfer) (driver.Status, block.Checksum, error) {
		if versions[i] == nil {
			return driver.Skipped, block.Checksum{}, errs[i]
		}
		return t.settle(b.Key, versions[i], t.put(b, versions[i]))
	})
}

// put copies a block into the store.
func (t *tier) put(b *driver.Transfer, v *version) error {
	if b.Size < 0 {
		return block.ErrInvalid
	}
	data := make([]byte, b.Size)
	if n, err := b.File.ReadAt(data, 0); n < len(data) {
		return errors.Join(block.ErrInvalid, err)
	}
	if v.sum = block.Sum(data); b.Sum.Valid && b.Sum != v.sum {
		return block.ErrCorrupt
	}
	return t.outage(t.store.Put(t.late, v.name, data))
}

// settle ends the Store of a version. If that is void by now, or was not written, it deletes the file.
func (t *tier) settle(key block.Key, v *version, err error) (driver.Status, block.Checksum, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	current := t.copies[key] == v
	v.ready = true
	switch {
	case err == nil && current:
		return driver.Stored, v.sum, nil
	case current:
		t.dropLocked(key)
	default:
		t.deleteLocked(v)
	}
	switch {
	case err == nil:
		return driver.Skipped, block.Checksum{}, block.ErrNotFound
	case errors.Is(err, block.ErrNoSpace):
		return driver.Skipped, block.Checksum{}, err
	}
	return driver.Failed, block.Checksum{}, err
}

// Load implements driver.Tier.
func (t *tier) Load(job *driver.Job) {
	t.begin("load", job, func(int, *driver.Transfer) {}, func(_ int, b *driver.Transfer) (driver.Status, block.Checksum, error) {
		t.mu.Lock()
		v := t.copies[b.Key]
		pending := v != nil && !v.ready
		t.mu.Unlock()
		switch {
		case pending:
			return driver.Failed, block.Checksum{}, block.ErrPending
		case v == nil || v.size != b.Size || b.Sum.Valid && b.Sum != v.sum:
			return driver.Absent, block.Checksum{}, nil
		}
		data := make([]byte, v.size)
		switch err := t.store.Get(t.late, v.name, data); {
		case errors.Is(err, iofs.ErrNotExist):
			t.forget(b.Key, v)
			return driver.Absent, block.Checksum{}, nil
		case err != nil:
			return driver.Failed, block.Checksum{}, t.outage(err)
		case block.Sum(data) != v.sum:
			t.forget(b.Key, v)
			return driver.Failed, block.Checksum{}, block.ErrCorrupt
		}
		if _, err := b.File.WriteAt(data, 0); err != nil {
			return driver.Failed, block.Checksum{}, errors.Join(block.ErrInvalid, err)
		}
		return driver.Loaded, v.sum, nil
	})
}

// begin calls claim for each block, with the lock held, and then has a goroutine do the job.
func (t *tier) begin(op string, job *driver.Job, claim func(int, *driver.Transfer), move func(int, *driver.Transfer) (driver.Status, block.Checksum, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	closed, start := t.closed, t.jobs.Go
	if closed {
		start = func(f func()) { go f() } // ends at once; nothing waits for it, because the tier is closed
	}
	for i := range job.Blocks {
		if !closed {
			claim(i, &job.Blocks[i])
		}
	}
	start(func() { // ends with the job
		outcomes := make([]driver.Outcome, len(job.Blocks))
		for i := range job.Blocks {
			b, o := &job.Blocks[i], &outcomes[i]
			o.Key = b.Key
			err := block.ErrClosed
			if !closed {
				o.Status, o.Sum, err = move(i, b)
			}
			if err != nil {
				o.Err = t.fail(op, b.Key, err)
			}
			if o.Status == driver.Stored || o.Status == driver.Loaded {
				o.Bytes = b.Size
			}
		}
		job.Done(&driver.Result{Job: job.ID, Outcomes: outcomes})
	})
}

// forget drops a copy that is bad or lost, unless another one has its place already.
func (t *tier) forget(key block.Key, v *version) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.copies[key] == v {
		t.dropLocked(key)
	}
}

// dropLocked forgets the version of a key and reports whether the store had it. The Store of a version that is not
// ready deletes it. It needs t.mu.
func (t *tier) dropLocked(key block.Key) (held bool) {
	v := t.copies[key]
	delete(t.copies, key)
	if held = v != nil && v.ready; held {
		t.deleteLocked(v)
	}
	return held
}

// deleteLocked has a goroutine delete a file. It needs t.mu, and a tier that is not closed or a job that runs.
func (t *tier) deleteLocked(v *version) { t.jobs.Go(func() { t.store.Delete(v.name) }) }

// Remove implements driver.Tier.
func (t *tier) Remove(keys []block.Key) (held int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		if !t.closed && t.dropLocked(key) {
			held++
		}
	}
	return held
}

// Touch implements driver.Tier.
func (t *tier) Touch([]block.Key) {}

// Close implements driver.Tier.
func (t *tier) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	defer context.AfterFunc(ctx, t.giveUp)()
	return t.end()
}

// finish waits for the jobs, and closes the store.
func (t *tier) finish() error {
	t.jobs.Wait()
	t.giveUp()
	return t.store.Close()
}

// outage gives an error of the store its kind.
func (t *tier) outage(err error) error {
	switch {
	case err == nil || errors.Is(err, block.ErrNoSpace) || errors.Is(err, block.ErrTooLarge):
		return err
	case t.late.Err() != nil:
		return errors.Join(block.ErrClosed, err)
	}
	return errors.Join(block.ErrUnavailable, err)
}

func (t *tier) fail(op string, key block.Key, err error) error {
	return &block.Error{Op: op, Tier: t.name, Key: key, Err: err}
}
