package openfile

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Truncate sets the size of the bytes of h. It reserves room if they grow, and
// fails with ErrNoSpace, ErrQuota or ErrTooLarge.
func (h *Handle) Truncate(ctx context.Context, size int64) error {
	err := h.truncate(ctx, size)
	if err == nil {
		h.File.e.tellSize(h.File.id, size)
	}
	return err
}

func (h *Handle) truncate(ctx context.Context, size int64) error {
	f := h.File
	if err := f.prepare(ctx, size, false); err != nil {
		return err
	}
	return h.WithFile(func(file *os.File) error {
		defer f.e.TellFreed(file)
		return file.Truncate(size)
	})
}

// Allocate reserves room for length bytes at off, as fallocate(2). The size
// grows to cover them unless keep is set. It fails as Truncate does.
func (h *Handle) Allocate(ctx context.Context, off, length int64, keep bool) error {
	f := h.File
	if keep {
		f.growth.Lock()
		defer f.growth.Unlock()
		f.e.Mu.Lock()
		want, started := catalog.ChargeOf(off+length)-f.Charge(), f.started
		f.e.Mu.Unlock()
		return f.e.memory.Reserve(ctx, f.id, want, started)
	}
	if err := f.prepare(ctx, off+length, false); err != nil {
		return err
	}
	size, _, err := f.fstat()
	if err != nil || size >= off+length {
		return err
	}
	if err := h.WithFile(func(file *os.File) error { return file.Truncate(off + length) }); err != nil {
		return err
	}
	f.e.tellSize(f.id, off+length)
	return nil
}

// PunchHole frees the pages of a range and keeps the size, as fallocate(2) with FALLOC_FL_PUNCH_HOLE.
func (h *Handle) PunchHole(_ context.Context, off, length int64) error {
	return h.WithFile(func(file *os.File) error {
		defer h.File.e.TellFreed(file)
		return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

// TruncateName sets the size of a file that the caller does not have open for writing, as
// truncate(2). It fails as OpenWrite and Truncate do.
func (fl *Files) TruncateName(ctx context.Context, id index.ID, by state.Caller, size int64) error {
	h, err := fl.OpenWrite(ctx, id, by, WriteOptions{Append: true})
	if err != nil {
		return err
	}
	err = h.truncate(ctx, size) // the commit tells the kernels
	fl.Release(h)
	return err
}

// setHollowMtime sets the time of a block that has left memory. It returns false if the
// block is gone, or back in memory.
func (fl *Files) setHollowMtime(id index.ID, ns int64) bool {
	fl.Mu.Lock()
	defer fl.Mu.Unlock()
	en := fl.Mu.Ix.At(id)
	if !fl.NonresidentLocked(id, en) {
		return false
	}
	fl.ApplyLocked(catalog.Times{ID: id, Mtime: ns, Ctime: en.Ctime()})
	return true
}

// SetMtime sets the time in the entry and on the primary file, because Adopt compares the two.
func (fl *Files) SetMtime(id index.ID, w state.WriteSide, blob driver.BlobID, ns int64) error {
	f, _ := w.(*File)
	set := func(file *os.File) error {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(ns)}
		return os.NewSyscallError("futimens", state.Futimens(int(file.Fd()), ts))
	}
	err := os.ErrClosed
	if f != nil {
		f.commits.Lock() // or a commit that has read the old time already would restore it
		defer f.commits.Unlock()
		err = f.withFile(set)
	}
	if errors.Is(err, os.ErrClosed) { // no handle is open, or none any more
		file, openErr := fl.Primary.Open(blob)
		if errors.Is(openErr, block.ErrNotFound) && fl.setHollowMtime(id, ns) {
			return nil
		}
		if openErr != nil {
			return openErr
		}
		defer file.Close()
		err = set(file)
	}
	if err != nil {
		return err
	}
	fl.Mu.Lock()
	if f := fl.fileLocked(id); f == nil || len(f.handles) == 0 { // else the close of a handle sees the change
		fl.ApplyLocked(catalog.Times{ID: id, Mtime: ns, Ctime: fl.Mu.Ix.At(id).Ctime()})
	}
	fl.Mu.Unlock()
	return nil
}

// tellSize tells kernels that a handle gives a committed file another size in place.
func (fl *Files) tellSize(id index.ID, size int64) {
	if !fl.Opts.Kernels {
		return
	}
	var g state.Gone
	fl.Mu.Lock()
	if fl.Mu.Ix.At(id).Size() != size {
		fl.TellAttrsLocked(id, &g)
	}
	fl.Mu.Unlock()
	fl.Finish(&g)
}
