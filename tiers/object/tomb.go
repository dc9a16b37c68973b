package object

import (
	"context"
	"errors"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/object/catalog"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

const (
	// buryEvery is how long removals wait to go into one object.
	buryEvery = time.Second
	// maxTombs bounds the removals that wait while the store is away. The oldest are given up.
	maxTombs = 1 << 20
	// tombBytes bounds an object of tombstones that is read, buryBytes the paths in one that is written.
	tombBytes, buryBytes = 64 << 20, 16 << 20
)

// bury writes removals to the bucket.
func (t *Tier) bury() {
	for {
		select {
		case <-time.After(buryEvery):
			t.writeTombs(t.life)
		case <-t.life.Done():
			t.writeTombs(t.late)
			return
		}
	}
}

// writeTombs writes the removals that wait. If that fails, they go on waiting.
func (t *Tier) writeTombs(ctx context.Context) {
	t.mu.Lock()
	list := t.mu.tombs
	t.mu.tombs = nil
	t.mu.Unlock()
	var late []pack.Tomb
	for len(list) > 0 && !t.readOnly.Load() {
		n, bytes := 0, 0
		for n < len(list) && bytes < buryBytes {
			bytes += len(list[n].Path)
			n++
		}
		early, err := t.writeSome(ctx, list[:n])
		if err != nil {
			t.outage("remove", err)
			late = append(late, list...)
			break
		}
		late, list = append(late, early...), list[n:]
	}
	t.mu.Lock()
	late = append(late, t.mu.tombs...)
	t.mu.tombs = late[max(0, len(late)-maxTombs):]
	t.mu.Unlock()
}

// writeSome writes removals as one object, but for those that are void by now, and for early, which have to wait: their
// blocks are being stored again, perhaps in the version that was removed and in a pack with an earlier time than the object.
func (t *Tier) writeSome(ctx context.Context, list []pack.Tomb) (early []pack.Tomb, err error) {
	name := pack.Name{Time: t.tick(), Writer: t.o.Writer} // before flights are looked at: the packs of later ones are newer
	var write []pack.Tomb
	for _, b := range list {
		key, err := block.ParseKey(b.Path)
		t.mu.Lock()
		flies := t.mu.flights[key] != nil
		t.mu.Unlock()
		if flies {
			early = append(early, b)
		} else if e, has := t.catalog.Get(key); err == nil && !(has && e.Seq <= b.Seq) { // not stored again
			write = append(write, b)
		}
	}
	if len(write) == 0 {
		return early, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.o.StoreTime)
	defer cancel()
	return early, t.kind(t.bucket.Put(ctx, name.String(), pack.EncodeTombs(name, write)))
}

// readTombs enters tombstones in the catalog.
func (t *Tier) readTombs(ctx context.Context, o object) {
	n, _ := pack.ParseName(o.name)
	if _, known := t.buried.Load(n); known || n.Writer == t.o.Writer || o.size > tombBytes {
		return // one that was read before, or one of this process
	}
	p := make([]byte, o.size)
	if err := t.bucket.Get(ctx, o.name, 0, p); err != nil {
		if ctx.Err() == nil && !errors.Is(err, block.ErrNotFound) {
			t.outage("tombstones", t.kind(err))
		}
		return
	}
	list, err := pack.DecodeTombs(n, p)
	if err != nil {
		t.ignored.Store(o.name, true)
		t.o.Logger.Warn("damaged tombstones", zap.String("tier", t.o.Name), zap.String("object", o.name), zap.Error(err))
		return
	}
	t.buried.Store(n, true)
	t.follow(n.Time)
	soonest := t.o.Now().Add(t.o.TombstoneTTL).UnixNano() // a pack with the block may be read at any time
	for _, b := range list {
		if t.catalog.Remove(b.Path, b.Seq, n.Time, max(b.Expires, soonest)) {
			t.tellRemoved(b.Path)
		}
	}
}

// tellRemoved tells the engine, which may have looked the block up, that another process has removed it.
func (t *Tier) tellRemoved(path string) {
	host := t.host.Load()
	key, err := block.ParseKey(path)
	if _, again := t.catalog.Get(key); host == nil || err != nil || again {
		return
	}
	(*host).Lost(key, &block.Error{Op: "list", Tier: t.o.Name, Key: key, Err: block.ErrNotFound})
}

// forgetTombs forgets which tombstones were read that the bucket has no longer, as listed.
func (t *Tier) forgetTombs(listed []object) {
	there := map[string]bool{}
	for _, o := range listed {
		there[o.name] = true
	}
	t.buried.Range(func(n, _ any) bool {
		if !there[n.(pack.Name).String()] {
			t.buried.Delete(n)
		}
		return true
	})
}

// tidy deletes tombstones that are no longer needed, and gives up the uploads of processes that have died.
func (t *Tier) tidy(ctx context.Context, now time.Time, tombs []object) {
	if t.readOnly.Load() {
		return
	}
	if n, err := t.bucket.AbortUploads(ctx, staleUpload); err == nil && n > 0 {
		t.o.Logger.Info("uploads of processes that died were given up", zap.String("tier", t.o.Name), zap.Int("uploads", n))
	}
	oldest := int64(math.MaxInt64) // time of the oldest pack that may have dead blocks
	t.catalog.Packs(func(_ uint32, p catalog.Pack) bool {
		if p.Blocks < p.Total || p.Total == 0 {
			oldest = min(oldest, p.Time)
		}
		return true
	})
	for _, o := range tombs {
		n, _ := pack.ParseName(o.name)
		age := now.Sub(time.Unix(0, n.Time))
		if age <= t.o.TombstoneTTL || !t.ours(n, age-t.o.TombstoneTTL) || oldest <= n.Time {
			continue
		}
		if err := t.kind(t.bucket.Delete(ctx, o.name)); err != nil {
			t.outage("tidy", err)
			return
		}
	}
}
