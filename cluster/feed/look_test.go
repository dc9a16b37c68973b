package feed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestLook shows that subscribers that ask for parts while another one is served share one look, that each gets its parts, and
// that it does no harm when the one that is to look for others goes away.
func TestLook(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLog(LogOptions{Epoch: 7})
			held := spread(1, 0, shards-1) // one in each shard
			gate, calls := make(chan struct{}), 0
			snapshot := func(ctx context.Context, fn func(r *Record) error) error {
				calls++ // one at a time
				select {
				case <-gate:
				case <-ctx.Done():
					return ctx.Err()
				}
				return holding(held...)(ctx, fn)
			}
			const subscribers = 1 + lookWants + 10
			var wg sync.WaitGroup
			second, leave := context.WithCancel(t.Context())
			for i := range subscribers {
				ctx := t.Context()
				if i == 1 {
					ctx = second
				}
				wg.Go(func() {
					parts := NewParts(shards)
					parts.Add(i)
					w, err := l.look(ctx, parts, nil, snapshot)
					if i == 1 && leaves {
						if !errors.Is(err, context.Canceled) {
							t.Errorf("the one that left: %v", err)
						}
						return
					}
					if err != nil {
						t.Errorf("subscriber %d: %v", i, err)
						return
					}
					var got, want []uint64
					for _, b := range w.batches {
						list, err := decodeAll(b.Records)
						if err != nil {
							t.Error(err)
						}
						for _, r := range list {
							got = append(got, r.Hash)
						}
					}
					for i := range held {
						if parts.Holds(held[i].Hash) {
							want = append(want, held[i].Hash)
						}
					}
					if len(want) == 0 || !slices.Equal(got, want) {
						t.Errorf("subscriber %d: %x, want %x", i, got, want)
					}
				})
				synctest.Wait()
			}
			if calls != 1 {
				t.Errorf("%d looks begun", calls)
			}
			if leaves {
				leave()
				synctest.Wait()
			}
			close(gate)
			wg.Wait()
			leave()
			if calls != 3 {
				t.Errorf("%d subscribers need %d looks, want 3", subscribers, calls)
			}
		})
	}
}

// TestLookTooMuch shows that a subscriber that wants more than is kept for it gets all of it nevertheless.
func TestLookTooMuch(t *testing.T) {
	l := NewLog(LogOptions{Epoch: 7})
	l.Append(Record{Op: Hold, Hash: 1, Seq: 1, Mode: 0o100644})
	var held []Record
	for i := range uint64(wantBytes / 8) {
		held = append(held, Record{Op: Hold, Hash: i * 0x9e3779b97f4a7c15, Seq: i + 1, Mode: 0o100644})
	}
	parts := NewParts(shards)
	for i := range shards {
		parts.Add(i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	count, ends := 0, 0
	err := l.ServeParts(ctx, Position{7, 2}, parts, nil, holding(held...), func(b *Batch) error {
		count += b.Count
		if b.End {
			ends++
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || count != len(held) || ends != 1 {
		t.Errorf("%d of %d records, %v", count, len(held), err)
	}
}
