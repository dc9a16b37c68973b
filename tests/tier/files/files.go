// Package files is a type of tier as another program would add one: a directory with a file for each
// block, which does not outlive the process.
package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Options are the keys of an entry of tiers with this type.
type Options struct {
	Root     string      `kvfs:"root" required:"true" help:"Directory, made if it is absent."`
	MaxBlock scalar.Size `kvfs:"max_block" default:"1GiB" help:"Largest block that is taken."`
}

var _ driver.Opener = (*Options)(nil)

// Open implements driver.Opener.
func (o *Options) Open(_ context.Context, name string, log *zap.Logger) (driver.Tier, error) {
	if err := os.MkdirAll(o.Root, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Root, "blocks")
	if err != nil {
		return nil, err
	}
	log.Named(name).Info("open", zap.String("dir", dir))
	t := &files{name: name, dir: dir, maxBytes: int64(o.MaxBlock)}
	t.held, t.storing = map[block.Key]*stored{}, map[block.Key]*stored{}
	t.late, t.giveUp = context.WithCancel(context.Background())
	return t, nil
}

// files is the tier.
type files struct {
	name, dir string
	maxBytes  int64
	made      atomic.Uint64   // files
	jobs      sync.WaitGroup  //
	late      context.Context // ends when Close waits no longer
	giveUp    context.CancelFunc

	mu      sync.Mutex
	closed  bool
	held    map[block.Key]*stored
	storing map[block.Key]*stored // the Store of a key that counts: the last one, if it was not removed since
}

// stored is one version of a block.
type stored struct {
	path string
	seq  uint64
	size int64
	sum  block.Checksum
}

// Lookup implements driver.Tier.
func (t *files) Lookup(_ context.Context, keys []block.Key, out []driver.Presence) error {
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
		if t.held[key] != nil {
			out[i] = driver.Hit
		} else if t.storing[key] != nil {
			out[i] = driver.Pending
		}
	}
	return nil
}

// Store implements driver.Tier.
func (t *files) Store(job *driver.Job) {
	claims := make([]*stored, len(job.Blocks))
	t.begin("store", job, func(i int, b *driver.Transfer) {
		if s := t.storing[b.Key]; s == nil || s.seq != b.Attrs.Seq {
			path := filepath.Join(t.dir, strconv.FormatUint(t.made.Add(1), 10))
			claims[i] = &stored{path: path, seq: b.Attrs.Seq, size: b.Size}
			t.storing[b.Key] = claims[i]
		}
	}, func(i int, b *driver.Transfer) (driver.Status, block.Checksum, error) {
		if claims[i] == nil {
			return driver.Skipped, block.Checksum{}, block.ErrPending
		}
		return t.settle(b, claims[i], t.write(b, claims[i]))
	})
}

// write copies a block into its file, unless it is held.
func (t *files) write(b *driver.Transfer, s *stored) error {
	t.mu.Lock()
	h := t.held[b.Key]
	t.mu.Unlock()
	switch {
	case h != nil && h.seq == s.seq:
		return nil
	case t.late.Err() != nil:
		return block.ErrClosed
	case b.Size < 0:
		return block.ErrInvalid
	case b.Size > t.maxBytes:
		return block.ErrTooLarge
	}
	data := make([]byte, b.Size)
	if n, err := b.File.ReadAt(data, 0); n < len(data) {
		return errors.Join(block.ErrInvalid, err)
	}
	if s.sum = block.Sum(data); b.Sum.Valid && b.Sum != s.sum {
		return block.ErrCorrupt
	}
	if err := os.WriteFile(s.path, data, 0o600); err != nil {
		return errors.Join(block.ErrUnavailable, err)
	}
	return nil
}

// settle has a block that was written take the place of what is held, if its Store still counts.
func (t *files) settle(b *driver.Transfer, s *stored, err error) (driver.Status, block.Checksum, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[b.Key]
	counts := t.storing[b.Key] == s
	if counts {
		delete(t.storing, b.Key)
	}
	switch {
	case counts && err == nil && h != nil && h.seq == s.seq:
		return driver.Skipped, block.Checksum{}, nil
	case counts && h != nil: // another version, which is void
		os.Remove(h.path)
		delete(t.held, b.Key)
	}
	if err == nil && counts {
		t.held[b.Key] = s
		return driver.Stored, s.sum, nil
	}
	os.Remove(s.path) // if it is there
	if err == nil {
		return driver.Skipped, block.Checksum{}, block.ErrNotFound
	}
	return driver.Failed, block.Checksum{}, err
}

// Load implements driver.Tier.
func (t *files) Load(job *driver.Job) {
	t.begin("load", job, func(int, *driver.Transfer) {}, func(_ int, b *driver.Transfer) (driver.Status, block.Checksum, error) {
		t.mu.Lock()
		h, storing := t.held[b.Key], t.storing[b.Key]
		t.mu.Unlock()
		switch {
		case t.late.Err() != nil:
			return driver.Failed, block.Checksum{}, block.ErrClosed
		case h == nil && storing != nil:
			return driver.Failed, block.Checksum{}, block.ErrPending
		case h == nil || h.size != b.Size || b.Sum.Valid && b.Sum != h.sum:
			return driver.Absent, block.Checksum{}, nil
		}
		data, err := os.ReadFile(h.path)
		switch {
		case errors.Is(err, os.ErrNotExist): // removed meanwhile
			return driver.Absent, block.Checksum{}, nil
		case err != nil:
			return driver.Failed, block.Checksum{}, errors.Join(block.ErrUnavailable, err)
		case block.Sum(data) != h.sum:
			t.drop(b.Key, h)
			return driver.Failed, block.Checksum{}, block.ErrCorrupt
		}
		if _, err := b.File.WriteAt(data, 0); err != nil {
			return driver.Failed, block.Checksum{}, errors.Join(block.ErrInvalid, err)
		}
		return driver.Loaded, h.sum, nil
	})
}

// begin calls claim for each block, with the lock held, and then runs the job.
func (t *files) begin(op string, job *driver.Job, claim func(int, *driver.Transfer), move func(int, *driver.Transfer) (driver.Status, block.Checksum, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	closed, start := t.closed, t.jobs.Go
	if closed {
		start = func(f func()) { go f() } // no goroutine waits for it: it touches only the job
	} else {
		for i := range job.Blocks {
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

// drop forgets a copy, if it is still held.
func (t *files) drop(key block.Key, h *stored) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[key] == h {
		os.Remove(h.path)
		delete(t.held, key)
	}
}

// Remove implements driver.Tier.
func (t *files) Remove(keys []block.Key) (held int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		delete(t.storing, key)
		if h := t.held[key]; h != nil {
			held++
			os.Remove(h.path)
			delete(t.held, key)
		}
	}
	return held
}

// Touch implements driver.Tier.
func (t *files) Touch([]block.Key) {}

// Close implements driver.Tier.
func (t *files) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	defer context.AfterFunc(ctx, t.giveUp)()
	t.jobs.Wait()
	t.giveUp()
	t.mu.Lock()
	clear(t.held)
	t.mu.Unlock()
	return os.RemoveAll(t.dir)
}

func (t *files) fail(op string, key block.Key, err error) error {
	return &block.Error{Op: op, Tier: t.name, Key: key, Err: err}
}
