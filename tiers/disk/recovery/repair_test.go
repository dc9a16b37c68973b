package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// TestRepairUnreadable shows that of a piece of data that cannot be read each block is judged
// by itself: the good ones stay, the bad one is freed, and one that cannot be read even
// alone is reported and stays as it is.
func TestRepairUnreadable(t *testing.T) {
	for _, alone := range []bool{false, true} { // readable alone, or not even so
		dir := filepath.Join(t.TempDir(), "d")
		d := openTest(t, dir)
		f, s := plantSlab(t, d, 1, format.PageBytes, 10)
		for slot := range uint32(10) {
			plantBlock(t, f, s, slot, fmt.Sprintf("m/%d", slot), 9, 4000)
		}
		saveTest(t, d)
		must(t, d.Close())
		patch(t, f.Name(), s.DataOff(3)+9, func(b []byte) { b[0]++ }, 1)

		d, err := lockDir(dir, Options{AllowTmpfs: true, Logger: zap.NewNop()}, true)
		must(t, err)
		c := newChecker(context.Background(), d, dir, CheckOptions{Repair: true, Data: true})
		must(t, c.run(c.super, c.files, c.tables))
		flags := os.O_RDONLY
		if !alone {
			flags = os.O_WRONLY // which fails to be read with EBADF
		}
		file, err := os.OpenFile(f.Name(), flags, 0)
		must(t, err)
		mem, err := mapMemory(pieceBytes)
		must(t, err)
		c.judgeBlocks(&piece{f: file, mem: mem, blocks: c.entries, err: unix.EIO})
		must(t, errors.Join(c.finish(), unix.Munmap(mem), file.Close(), d.Close()))
		errs, repaired, blocks, left := int64(1), int64(1), int64(9), 9
		if !alone {
			errs, repaired, blocks, left = 10, 0, 0, 10
		}
		if c.r.Errors != errs || c.r.Repaired != repaired || c.r.Blocks != blocks {
			t.Errorf("readable alone: %v: %s", alone, c.r)
		}
		got, _ := reopened(t, dir)
		if _, ok := got["m/3"]; len(got) != left || ok == alone {
			t.Errorf("readable alone: %v: %d blocks left, want %d: %v", alone, len(got), left, slices.Collect(maps.Keys(got)))
		}
	}
}

// TestSuperblockStale shows that a crash between the two writes which declare the index
// invalid leaves no copy that says that it is valid, once the tier was opened again: not even
// the older one, which would count if the newer were damaged.
func TestSuperblockStale(t *testing.T) {
	dir, _ := plantClosed(t)
	d := openTest(t, dir)
	must(t, d.updateSuper(func(s *format.Superblock) { s.Clean = true })) // now both say so
	must(t, d.updateSuper(func(s *format.Superblock) { s.Clean = false }))
	must(t, d.Close()) // as a crash
	d = openTest(t, dir)
	must(t, d.MarkDirty())
	for at := range 2 {
		var page [format.PageBytes]byte
		if _, err := d.file.ReadAt(page[:], int64(at)*format.PageBytes); err != nil {
			t.Fatal(err)
		}
		if s, err := format.DecodeSuperblock(page[:]); err != nil || s.Clean {
			t.Errorf("copy %d: %+v, %v", at, s, err)
		}
	}
	before := d.Superblock()
	if err := d.MarkDirty(); err != nil || d.Superblock() != before {
		t.Errorf("again: %v, it is written anew: %v", err, d.Superblock() != before)
	}
	must(t, d.Close())
	_, rec := reopened(t, dir)
	if !errors.Is(rec.IndexErr, errUnclean) {
		t.Errorf("got %v", rec.IndexErr)
	}
}
