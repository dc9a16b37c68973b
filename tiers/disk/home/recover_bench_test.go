package home

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// BenchmarkRecover opens a directory with so many blocks of 64 KiB in slabs of 256 MiB:
// real tables and a real index, data as holes. All reads are direct. What the
// caller does with a block is not in it.
func BenchmarkRecover(b *testing.B) {
	for _, blocks := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			if blocks > 100_000 && testing.Short() {
				b.Skip("writes 4 GB: not with -short")
			}
			d := openTest(b, filepath.Join(b.TempDir(), "d"))
			plantMany(b, d, blocks)
			b.Run("tables", func(b *testing.B) { benchRecover(b, d, blocks, 0) })
			b.Run("save", func(b *testing.B) {
				for b.Loop() {
					saveTest(b, d)
				}
				info, err := os.Stat(d.Join(format.IndexName))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(info.Size())/float64(blocks), "index-B/block")
			})
			b.Run("index", func(b *testing.B) { benchRecover(b, d, blocks, blocks) })
		})
	}
}

func benchRecover(b *testing.B, d *Dir, blocks, byIndex int) {
	b.ReportAllocs()
	for b.Loop() {
		var bytes int64
		r, err := d.Recover(context.Background(), Funcs{
			Slab: func(*Slab) {},
			Slot: func(_ *Slab, h *format.SlotHeader) { bytes += h.Size },
		})
		if err != nil || r.Blocks != int64(blocks) || r.ByIndex != int64(byIndex) || bytes != 65536*int64(blocks) {
			b.Fatalf("got %+v, %v", r, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Seconds())/float64(b.N)/float64(blocks)*1e6, "s/million")
}

func plantMany(b *testing.B, d *Dir, blocks int) {
	b.Helper()
	const slotBytes = 65536
	perSlab := format.SlotsFor(256<<20, slotBytes)
	mem, err := mapMemory(format.PageBytes * int(1+perSlab))
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Munmap(mem)
	h := format.SlotHeader{Size: slotBytes, Attrs: driver.Attrs{Mode: 0o644, Dirs: make([]driver.DirAttrs, 2)}}
	for number, n := uint32(0), 0; n < blocks; number++ {
		s := format.SlabHeader{Number: number, UUID: d.Superblock().UUID, Epoch: 1, SlotBytes: slotBytes, Slots: perSlab}
		clear(mem)
		s.Encode(mem)
		for slot := uint32(0); slot < perSlab && n < blocks; slot, n = slot+1, n+1 {
			h.Slot, h.Epoch, h.Attrs.Seq = slot, 1, uint64(n+1)
			h.Key = fmt.Appendf(h.Key[:0], "model_0123456789ab_r0/%03x/%064x.bin", n%4096, n)
			if err := h.Encode(mem[s.HeaderOff(slot):]); err != nil {
				b.Fatal(err)
			}
		}
		f, err := d.openDirect(format.SlabName(number), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		if err == nil {
			err = writeFull(f, mem, 0)
		}
		if err == nil {
			err = f.Truncate(s.WantBytes())
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
