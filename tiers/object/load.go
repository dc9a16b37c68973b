package object

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/catalog"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

const (
	// gapBytes is how much that nobody wants is read between two blocks of one request.
	gapBytes = 128 << 10
	// runBytes bounds a request for several blocks.
	runBytes = 16 << 20
)

// want is one block to be loaded.
type want struct {
	i    int // its place in the job
	rec  catalog.Entry
	name pack.Name // of the pack: its number may be that of another one soon
	size int64     // of its frame
	came *arrival  // what has come of it; nil before its run is fetched
	user block.UserAttrs
}

// run is a piece of a pack with blocks that are loaded with one request.
type run struct {
	name        pack.Name
	number      uint32
	from, until int64
	wants       []want
}

// KeepsUser implements driver.UserKeeper.
func (t *Tier) KeepsUser() {}

// Load implements driver.Tier. What the engine has not stored itself comes with its attributes of processes: these take a
// request of their own, if there are any.
func (t *Tier) Load(job *driver.Job) {
	w := newWork(job)
	var wants []want
	t.mu.Lock()
	for i := range job.Blocks {
		b := &job.Blocks[i]
		want, has := t.find(b, i)
		switch {
		case t.mu.closed:
			t.outcomeLocked(w, i, "load", driver.Failed, block.Checksum{}, block.ErrClosed)
		case !has && t.mu.flights[b.Key] != nil:
			t.outcomeLocked(w, i, "load", driver.Failed, block.Checksum{}, block.ErrPending)
		case !has || want.rec.Size != b.Size || !b.Sum.Valid && b.Attrs.Seq != 0 && b.Attrs.Seq != want.rec.Seq:
			t.outcomeLocked(w, i, "load", driver.Absent, block.Checksum{}, nil)
		case !t.bucket.Available():
			t.outcomeLocked(w, i, "load", driver.Failed, block.Checksum{}, block.ErrUnavailable)
		default:
			wants = append(wants, want)
		}
	}
	t.begunLocked(w, len(wants) == 0)
	t.mu.Unlock()
	for _, r := range runsOf(wants) {
		t.work.Go(func() { t.fetch(w, r) }) // ends at Options.LoadTime at the latest
	}
}

// find returns where the i-th block of a job is.
func (t *Tier) find(b *driver.Transfer, i int) (w want, has bool) {
	w = want{i: i, size: pack.FrameBytes(b.Key.Path(), b.Size)}
	for {
		if w.rec, has = t.catalog.Get(b.Key); !has {
			return w, false
		}
		p, _ := t.catalog.Pack(w.rec.Pack)
		w.name = nameOf(p)
		if same, _ := t.catalog.Get(b.Key); same == w.rec { // so it is in this pack
			return w, true
		}
	}
}

// runsOf cuts wanted blocks into requests.
func runsOf(wants []want) []*run {
	slices.SortFunc(wants, func(a, b want) int {
		return cmp.Or(cmp.Compare(a.rec.Pack, b.rec.Pack), cmp.Compare(a.rec.Offset, b.rec.Offset))
	})
	var runs []*run
	for _, w := range wants {
		end := w.rec.Offset + w.size
		if n := len(runs); n > 0 {
			if r := runs[n-1]; r.name == w.name && w.rec.Offset-r.until <= gapBytes && end-r.from <= runBytes {
				r.until = max(r.until, end)
				r.wants = append(r.wants, w)
				continue
			}
		}
		runs = append(runs, &run{name: w.name, number: w.rec.Pack, from: w.rec.Offset, until: end, wants: []want{w}})
	}
	return runs
}

// fetch makes one request and gives its blocks their outcomes.
func (t *Tier) fetch(w *work, r *run) {
	ctx, cancel := context.WithTimeout(t.late, t.o.LoadTime)
	defer cancel()
	weight := min(r.until-r.from, t.o.LoadBytes)
	if err := t.loads.Acquire(ctx, weight); err != nil {
		t.loaded(w, r, func(*want) (driver.Status, block.Checksum, error) {
			return driver.Failed, block.Checksum{}, t.kind(err)
		})
		return
	}
	defer t.loads.Release(weight)
	err := t.get(ctx, r, newDelivery(w, r))
	if errors.Is(err, block.ErrNotFound) {
		r.wants = t.again(w, r)
	}
	var corrupt []block.Key
	t.loaded(w, r, func(want *want) (driver.Status, block.Checksum, error) {
		switch {
		case errors.Is(err, block.ErrNotFound):
			return driver.Absent, block.Checksum{}, nil
		case err != nil:
			return driver.Failed, block.Checksum{}, err
		}
		status, sum, err := t.check(ctx, &w.Blocks[want.i], want)
		if errors.Is(err, block.ErrCorrupt) {
			corrupt = append(corrupt, w.outcomes[want.i].Key)
		}
		return status, sum, err
	})
	for _, key := range corrupt {
		t.suspects.Store(r.name, true)
		t.o.Logger.Warn("corrupt block", zap.String("tier", t.o.Name), zap.Stringer("block", key))
		if host := t.host.Load(); host != nil {
			(*host).Lost(key, &block.Error{Op: "load", Tier: t.o.Name, Key: key, Err: block.ErrCorrupt})
		}
	}
}

// again loads those blocks of a pack that is gone which were written anew, from where they are now. It returns the
// others.
func (t *Tier) again(w *work, r *run) (lost []want) {
	var moved []want
	for _, old := range r.wants {
		b := &w.Blocks[old.i]
		if now, has := t.find(b, old.i); has && now.rec.Seq == old.rec.Seq && now.name != r.name {
			moved = append(moved, now)
		} else {
			lost = append(lost, old)
		}
	}
	for _, next := range runsOf(moved) {
		t.work.Go(func() { t.fetch(w, next) }) // as in Load
	}
	return lost
}

// get reads what a run asks for. A pack that is not there any more leaves the catalog.
func (t *Tier) get(ctx context.Context, r *run, d *delivery) error {
	err := t.kind(t.bucket.Copy(ctx, r.name.String(), r.from, r.until-r.from, d))
	switch {
	case errors.Is(err, block.ErrNotFound):
		if p, has := t.catalog.Pack(r.number); has && nameOf(p) == r.name {
			t.drop(catalog.Ref{Number: r.number, Time: p.Time, Writer: p.Writer})
			t.o.Logger.Info("pack is gone from the bucket", zap.String("tier", t.o.Name), zap.Stringer("pack", r.name))
		}
	case err != nil:
		t.outage("load", err)
	}
	return err
}

// nameOf returns the name of the object that a pack is.
func nameOf(p catalog.Pack) pack.Name {
	return pack.Name{Time: p.Time, Writer: p.Writer, Index: p.Index}
}

// check tells what came of a block whose frame has come whole.
func (t *Tier) check(ctx context.Context, b *driver.Transfer, want *want) (driver.Status, block.Checksum, error) {
	a := want.came
	h, err := pack.CheckFrame(a.head, b.Key.Path())
	sum, bytes := a.sum()
	switch {
	case errors.Is(err, block.ErrNotFound), err == nil && (h.Seq != want.rec.Seq || b.Sum.Valid && b.Sum != h.Sum):
		return driver.Absent, block.Checksum{}, nil // another path with the same hash, or another version
	case a.mu.err != nil:
		return driver.Failed, block.Checksum{}, errors.Join(block.ErrInvalid, a.mu.err)
	case err != nil, h.Size != bytes, h.Sum != sum:
		t.catalog.Forget(b.Key.Path(), want.rec.Pack)
		return driver.Failed, block.Checksum{}, errors.Join(block.ErrCorrupt, err)
	}
	if h.User > 0 && b.Attrs.Seq != 0 {
		if want.user, err = t.userAttrs(ctx, want, h.User); err != nil {
			return driver.Failed, block.Checksum{}, err
		}
	}
	return driver.Loaded, sum, nil
}

// userAttrs reads the n bytes of attributes of processes of a block.
func (t *Tier) userAttrs(ctx context.Context, want *want, n int) (block.UserAttrs, error) {
	b := make([]byte, pack.UserBytes(n))
	if err := t.kind(t.bucket.Get(ctx, want.name.String(), want.rec.Offset+want.size, b)); err != nil {
		return "", err
	}
	return pack.CheckUser(b)
}

// loaded gives the blocks of a request their outcomes, and completes the job if they were the last ones.
func (t *Tier) loaded(w *work, r *run, outcome func(*want) (driver.Status, block.Checksum, error)) {
	status, sums, errs := make([]driver.Status, len(r.wants)), make([]block.Checksum, len(r.wants)), make([]error, len(r.wants))
	for i := range r.wants {
		status[i], sums[i], errs[i] = outcome(&r.wants[i])
	}
	t.mu.Lock()
	for i := range r.wants {
		want := &r.wants[i]
		t.outcomeLocked(w, want.i, "load", status[i], sums[i], errs[i])
		if seq := w.Blocks[want.i].Attrs.Seq; status[i] == driver.Loaded && seq != 0 {
			w.outcomes[want.i].Attrs = &driver.Attrs{Seq: seq, User: want.user}
		}
	}
	complete := len(r.wants) > 0 && w.left == 0
	t.mu.Unlock()
	if complete {
		t.done(w)
		t.work.Done()
	}
}
