package recovery

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// TestMark: after a kill the index counts for all slabs but the marked ones, also if the newer copy of the superblock is
// damaged, and also for slabs that were marked while a checkpoint was being written.
func TestMark(t *testing.T) {
	for _, during := range []bool{false, true} {
		for _, damaged := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "d")
			d := openTest(t, dir)
			want := plantAll(t, d)
			saveTest(t, d)
			must(t, d.KeepIndex())
			mark := func() {
				must(t, d.Mark(30))
			}
			mark()
			if during {
				err := d.Checkpoint(func(w *IndexWriter) error {
					_, err := d.Recover(context.Background(), Funcs{Slab: func(*Slab) {}, Slot: func(s *Slab, h *format.SlotHeader) {
						if w.header.Slabs == 0 || w.run.Number != s.Number {
							w.Slab(&s.SlabHeader)
						}
						w.Slot(h)
					}})
					mark()
					return err
				})
				must(t, err)
			}
			at := d.mu.at
			must(t, d.Close())  // as a kill does
			byIndex := int64(4) // those of slab 1
			if damaged {
				patch(t, filepath.Join(dir, format.SuperName), int64(at)*format.PageBytes+100, noise, 8)
				if during {
					byIndex = 0 // the older copy is that of the index before
				}
			}
			got, r := reopened(t, dir)
			wantSame(t, got, want)
			if r.ByIndex != byIndex || r.Blocks != 11 || (r.IndexErr == nil) != (byIndex > 0) {
				t.Errorf("checkpoint %v, newer copy damaged %v: got %+v", during, damaged, r)
			}
		}
	}
}
