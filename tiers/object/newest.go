package object

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// Named is a block in a bucket.
type Named struct {
	Path string
	Size int64 // bytes
}

// Newest calls fn for the blocks of a bucket that nodes find there, those of the newest pack first and in the order in
// which they lie in it, until fn returns false. A block that several packs have comes once for each. Removed blocks come
// too. A pack is passed over if it has gone since the listing or if its index is damaged.
//
// Newest fails if the bucket cannot be listed or an index cannot be read, and with the error of ctx.
func Newest(ctx context.Context, b Bucket, fn func(Named) bool) error {
	var packs []listed
	err := b.List(ctx, "", func(name string, size int64, _ time.Time) error {
		if n, ok := pack.ParseName(name); ok && n.Index > 0 {
			packs = append(packs, listed{n, size})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(packs, func(a, b listed) int { return cmp.Compare(b.name.Time, a.name.Time) })
	for some := range slices.Chunk(packs, readers) {
		found := make([][]Named, len(some))
		g, within := errgroup.WithContext(ctx)
		for i, p := range some {
			g.Go(func() (err error) { found[i], err = blocksOf(within, b, p); return err })
		}
		if err := cmp.Or(g.Wait(), ctx.Err()); err != nil {
			return err
		}
		for _, list := range found {
			for _, n := range list {
				if !fn(n) {
					return nil
				}
			}
		}
	}
	return nil
}

// blocksOf returns the blocks of a pack that nodes find, or none of a pack that is damaged or gone.
func blocksOf(ctx context.Context, b Bucket, p listed) (list []Named, err error) {
	tail, err := tailOf(ctx, b, p.name, p.size)
	if err == nil {
		err = pack.ReadIndex(p.name, tail, func(e *pack.Entry) bool {
			if e.Attrs.Expires == 0 || e.Attrs.Expires > time.Now().UnixNano() {
				list = append(list, Named{e.Path, e.Size})
			}
			return true
		})
	}
	if errors.Is(err, block.ErrCorrupt) || errors.Is(err, block.ErrNotFound) {
		return nil, nil
	}
	return list, err
}
