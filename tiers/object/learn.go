package object

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/object/catalog"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

const (
	// readers is how many indexes are read at a time.
	readers = 16
	// overlap is how long before the newest pack a listing begins. A pack is named before it is written.
	overlap = 15 * time.Minute
	// wholeEvery is how often the whole bucket is listed.
	wholeEvery = time.Hour
	// staleUpload is the age at which an upload under way is taken for one of a process that has died.
	staleUpload = 24 * time.Hour
)

// learn keeps the catalog up to date with the bucket.
func (t *Tier) learn() {
	t.probe()
	for {
		now := t.o.Now()
		whole := time.Unix(0, t.whole.Load())
		all := now.Sub(whole) >= wholeEvery || now.Before(whole)
		tombs, err := t.list(t.life, all)
		if err == nil && all {
			t.learned.Store(true)
			t.tidy(t.life, now, tombs)
			t.whole.Store(now.UnixNano())
		}
		if err != nil && t.life.Err() == nil {
			t.outage("list", t.kind(err))
		}
		if err == nil {
			t.makeRoom(t.life)
		}
		select {
		case <-time.After(jitter(t.o.Refresh)):
		case <-t.life.Done():
			return
		}
	}
}

// jitter returns a duration that is up to a tenth more, so that nodes do not list the bucket all at once.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/10+1) }

// probe tells in the log what is wrong with the bucket, if anything is.
func (t *Tier) probe() {
	if t.o.ReadOnly {
		return // the first listing tells the rest
	}
	err := t.bucket.Probe(t.life)
	switch {
	case err == nil || t.life.Err() != nil:
	case errors.Is(err, block.ErrReadOnly):
		t.cannotWrite(err)
	default:
		t.outage("probe", err)
	}
}

// cannotWrite makes the tier read-only, and says so once.
func (t *Tier) cannotWrite(err error) {
	if !t.readOnly.Swap(true) {
		t.o.Logger.Warn("the credentials do not allow to write: the tier is read-only", zap.String("tier", t.o.Name), zap.Error(err))
	}
}

// object is one object of the bucket.
type object struct {
	name string
	size int64
}

// list lists the bucket, or with all false what is newer than what is known, and enters what is new in the catalog:
// tombstones first, then packs, the newest first. A listing of everything drops the packs that are gone. It returns
// the tombstones.
func (t *Tier) list(ctx context.Context, all bool) (tombs []object, err error) {
	after, from := "", int64(0)
	if newest := t.newest.Load(); newest > 0 && !all {
		from = min(newest, t.o.Now().UnixNano()) - int64(overlap) // the clock of a writer may be ahead
		after = pack.Name{Time: from}.String()
	}
	var packs []object
	known := t.packsFrom(from) // before the listing: a pack that is written meanwhile is not missing from it
	err = t.bucket.List(ctx, after, func(name string, size int64, _ time.Time) error {
		n, ok := pack.ParseName(name)
		_, bad := t.ignored.Load(name)
		switch {
		case !ok || bad: // a foreign object, or a damaged one
		case n.Index == 0:
			tombs = append(tombs, object{name, size})
		case n.Writer != t.o.Writer && !has(known, n): // not one of this process
			packs = append(packs, object{name, size})
		}
		delete(known, n)
		t.newest.Store(max(t.newest.Load(), n.Time))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if all {
		t.forgetTombs(tombs)
		t.drop(slices.Collect(maps.Values(known))...)
	}
	t.each(ctx, tombs, t.readTombs)
	t.each(ctx, packs, t.readIndex)
	return tombs, ctx.Err()
}

// each calls fn for each object, from the last one on, some at a time.
func (t *Tier) each(ctx context.Context, list []object, fn func(context.Context, object)) {
	next := make(chan object)
	var readersDone sync.WaitGroup
	for range min(readers, len(list)) {
		readersDone.Go(func() { // ends with the list
			for o := range next {
				fn(ctx, o)
			}
		})
	}
	for i := len(list) - 1; i >= 0 && ctx.Err() == nil; i-- {
		next <- list[i]
	}
	close(next)
	readersDone.Wait()
}

// readIndex enters the blocks of a pack in the catalog. A pack that cannot be read is tried again at the next
// listing. One that is damaged is left alone until the next start.
func (t *Tier) readIndex(ctx context.Context, o object) {
	var number uint32
	blocks := 0
	err := t.index(ctx, o, func(n pack.Name) (err error) {
		number, err = t.addPack(n, o.size)
		return err
	}, func(e *pack.Entry) {
		blocks++
		t.put(e.Path, &e.Attrs, e.Size, number, e.Offset)
	})
	switch {
	case err == nil:
		t.catalog.Complete(number, blocks)
	case ctx.Err() != nil || errors.Is(err, block.ErrNotFound):
	case errors.Is(err, block.ErrCorrupt):
		t.ignored.Store(o.name, true)
		t.o.Logger.Warn("pack has a damaged index", zap.String("tier", t.o.Name), zap.String("pack", o.name), zap.Error(err))
	default:
		t.outage("index", t.kind(err))
	}
}

// index reads the index of a pack. If that is good, it calls begin, and then fn for each block.
func (t *Tier) index(ctx context.Context, o object, begin func(n pack.Name) error, fn func(*pack.Entry)) error {
	n, ok := pack.ParseName(o.name)
	if !ok {
		return block.ErrCorrupt
	}
	tail, err := tailOf(ctx, t.bucket, n, o.size)
	if err != nil {
		return err
	}
	if err := pack.ReadIndex(n, tail, func(*pack.Entry) bool { return false }); err != nil {
		return err
	}
	if err := begin(n); err != nil {
		return err
	}
	return pack.ReadIndex(n, tail, func(e *pack.Entry) bool { fn(e); return true })
}

// tailOf reads index and footer of a pack of this size.
func tailOf(ctx context.Context, b Bucket, n pack.Name, size int64) ([]byte, error) {
	tailBytes, err := n.TailBytes(size)
	if err != nil {
		return nil, err
	}
	tail := make([]byte, tailBytes)
	return tail, b.Get(ctx, n.String(), n.Index, tail)
}

// packsFrom returns the packs that are known and were named at a time or later.
func (t *Tier) packsFrom(from int64) map[pack.Name]catalog.Ref {
	known := map[pack.Name]catalog.Ref{}
	t.catalog.Packs(func(number uint32, p catalog.Pack) bool {
		if p.Time >= from {
			known[nameOf(p)] = catalog.Ref{Number: number, Time: p.Time, Writer: p.Writer}
		}
		return true
	})
	return known
}

func has[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }
