package object

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/catalog"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// strangerAge is the age from which any node writes a pack of another node anew.
const strangerAge = 24 * time.Hour

// makeRoom deletes the packs that are too old or more than the bucket may have, and writes half-dead packs anew.
func (t *Tier) makeRoom(ctx context.Context) {
	if t.readOnly.Load() || t.o.BucketExpires {
		return
	}
	now := t.o.Now()
	for _, p := range t.oldestFirst() {
		full := t.o.CapacityBytes > 0 && t.catalog.Stats().PackedBytes > t.o.CapacityBytes
		age := now.Sub(time.Unix(0, p.name.Time))
		old := t.o.TTL > 0 && age > t.o.TTL
		var err error
		switch {
		case ctx.Err() != nil || !t.bucket.Available():
			return
		case full || old:
			err = t.evict(ctx, p)
		case t.ours(p.name, age) && p.dead() && !t.suspect(p.name):
			err = t.compact(ctx, p)
		}
		if err != nil && ctx.Err() == nil {
			t.o.Logger.Warn("pack stays", zap.String("tier", t.o.Name), zap.Stringer("pack", p.name), zap.Error(err))
		}
	}
}

// known is a pack with its number.
type known struct {
	catalog.Pack
	name   pack.Name
	number uint32
}

// headBytes is about what a frame takes besides its data.
const headBytes = 256

func (p *known) ref() catalog.Ref {
	return catalog.Ref{Number: p.number, Time: p.name.Time, Writer: p.name.Writer}
}

// dead reports whether more than half of a pack are removed and replaced blocks.
func (p *known) dead() bool {
	return p.Blocks < p.Total && p.Live+int64(p.Blocks)*headBytes <= p.Index/2
}

// suspect reports whether a block of a pack arrived damaged. That may have happened on the way, and the block may be good
// for other nodes: it only counts as dead on this one.
func (t *Tier) suspect(n pack.Name) bool { _, is := t.suspects.Load(n); return is }

// oldestFirst lists the packs whose blocks are all in the catalog.
func (t *Tier) oldestFirst() []known {
	var list []known
	t.catalog.Packs(func(number uint32, p catalog.Pack) bool {
		if p.Total > 0 {
			list = append(list, known{p, nameOf(p), number})
		}
		return true
	})
	slices.SortFunc(list, func(a, b known) int { return cmp.Compare(a.Time, b.Time) })
	return list
}

// ours reports whether this node looks after an object of that age. A machine has the upper half of a writer's number.
func (t *Tier) ours(n pack.Name, age time.Duration) bool {
	return n.Writer>>32 == t.o.Writer>>32 || age > strangerAge
}

// evict deletes a pack. Blocks that the engine does not give up, and pinned ones, are written anew first.
func (t *Tier) evict(ctx context.Context, p known) error {
	at := t.tick() // before live: a later removal counts for the block in the new pack
	entries, err := t.live(ctx, p)
	if err != nil {
		return t.vanished(p, err)
	}
	var keep []pack.Entry
	host, evicted := t.host.Load(), uint64(0)
	for _, e := range entries {
		key, err := block.ParseKey(e.Path)
		if err != nil {
			continue
		}
		if e.Attrs.Pinned || host != nil && !t.mayEvict(*host, key, &e, p.number) {
			keep = append(keep, e)
			continue
		}
		t.catalog.Forget(e.Path, p.number)
		evicted++
	}
	t.mu.Lock()
	t.mu.stats.Evicted += evicted
	t.mu.Unlock()
	return t.replace(ctx, p, at, keep)
}

// mayEvict asks the engine for a block, which Find does not tell of meanwhile. Remove finds it all the same.
func (t *Tier) mayEvict(host driver.Host, key block.Key, e *pack.Entry, number uint32) bool {
	t.ask(version{e.Path, e.Attrs.Seq})
	defer t.ask(version{}) // after the block is back, or gone for good
	t.catalog.Forget(e.Path, number)
	if host.MayEvict(key) {
		return true
	}
	t.put(e.Path, &e.Attrs, e.Size, number, e.Offset)
	return false
}

func (t *Tier) ask(v version) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.asked = v
}

// compact writes what is alive of a pack anew, and deletes the pack.
func (t *Tier) compact(ctx context.Context, p known) error {
	at := t.tick() // as in evict
	entries, err := t.live(ctx, p)
	if err != nil {
		return t.vanished(p, err)
	}
	return t.replace(ctx, p, at, entries)
}

// vanished drops a pack from the catalog if err says that it is gone.
func (t *Tier) vanished(p known, err error) error {
	if errors.Is(err, block.ErrNotFound) {
		t.drop(p.ref())
		return nil
	}
	return err
}

// drop forgets packs that are gone from the bucket, and has the engine look which blocks are gone with them.
func (t *Tier) drop(refs ...catalog.Ref) {
	lost := t.catalog.Drop(refs...)
	host := t.host.Load()
	if lost == 0 || host == nil {
		return
	}
	if s, ok := (*host).(driver.Sweeper); ok {
		s.Sweep()
	}
}

// live returns the blocks of a pack that the catalog has there.
func (t *Tier) live(ctx context.Context, p known) ([]pack.Entry, error) {
	var alive []pack.Entry
	err := t.index(ctx, object{p.name.String(), p.Size}, func(pack.Name) error { return nil }, func(e *pack.Entry) {
		key, err := block.ParseKey(e.Path)
		if r, has := t.catalog.Get(key); err == nil && has && r.Pack == p.number && r.Offset == e.Offset {
			alive = append(alive, *e)
			alive[len(alive)-1].Attrs.Dirs = slices.Clone(e.Attrs.Dirs)
		}
	})
	return alive, t.kind(err)
}

// replace writes some blocks of a pack into a new one with the time at in its name, and deletes the old one. If the budget
// of the day does not allow that, nothing happens.
func (t *Tier) replace(ctx context.Context, p known, at int64, keep []pack.Entry) error {
	if len(keep) > 0 {
		bytes := int64(pack.FooterBytes)
		for _, e := range keep {
			bytes += pack.PaddedBytes(len(e.Path), e.Size, e.Attrs.User) + entryBytes(e.Path, e.Attrs.User)
		}
		if !t.rewrite.take(bytes, false) {
			return nil
		}
		if err := t.copy(ctx, p, at, keep, bytes); err != nil {
			return err
		}
	}
	if err := t.kind(t.bucket.Delete(ctx, p.name.String())); err != nil {
		return err
	}
	t.catalog.Drop(p.ref())
	return nil
}

// copy writes some blocks of a pack into a new one with the time at in its name.
func (t *Tier) copy(ctx context.Context, p known, at int64, keep []pack.Entry, bytes int64) error {
	b, offset := pack.NewBuilder(t.packs.get(bytes)), int64(0)
	for i := range keep {
		e := &keep[i]
		frame := make([]byte, pack.FrameBytes(e.Path, e.Size))
		if err := t.kind(t.bucket.Get(ctx, p.name.String(), e.Offset, frame)); err != nil {
			return err
		}
		data, h, err := open(frame, e.Path)
		if err == nil {
			err = b.Add(e.Path, &e.Attrs, data, h.Sum)
		}
		if err != nil {
			return err
		}
		e.Offset = offset
		offset += pack.PaddedBytes(len(e.Path), e.Size, e.Attrs.User)
	}
	name, data := b.Finish(at, t.o.Writer)
	defer t.packs.put(data)
	if err := t.kind(t.bucket.Put(ctx, name.String(), data)); err != nil {
		return err
	}
	number, err := t.addPack(name, int64(len(data)))
	for i := 0; i < len(keep) && err == nil; i++ {
		t.put(keep[i].Path, &keep[i].Attrs, keep[i].Size, number, keep[i].Offset)
	}
	if err == nil {
		t.catalog.Complete(number, len(keep))
	}
	return err
}

// open checks a frame and returns the data in it. It fails with ErrNotFound if the frame is of another path, and with
// ErrCorrupt.
func open(frame []byte, path string) ([]byte, pack.Header, error) {
	h, err := pack.CheckFrame(frame, path)
	if errors.Is(err, block.ErrNotFound) {
		return nil, h, err
	}
	if err == nil {
		data := frame[pack.HeaderBytes+len(path):]
		if int64(len(data)) == h.Size && block.Sum(data) == h.Sum {
			return data, h, nil
		}
	}
	return nil, h, errors.Join(block.ErrCorrupt, err)
}
