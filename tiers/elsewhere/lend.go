package elsewhere

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// lending is the room of exchange with other nodes: what this node has, lends, and takes on request.
type lending struct {
	*core

	streams state.Allowance // bytes lent from files of lendStream
}

const (
	// lendWait bounds the wait for the kernel to release the handles of a block that was just committed.
	lendWait = time.Second

	// maxStreamBytes bounds the bytes lent from files of lendStream.
	maxStreamBytes = 256 << 20
)

// Lend holds a block for another node, with its checksum computed. A block that is not in memory is promoted. While
// memory is short it is read into a file that goes with the loan, so that requests of other nodes do not evict what
// this node needs. Lend blocks on a device in either case. It fails with ErrNotFound, with ErrPending if the block is
// being written or on its way, with ErrNoSpace if there is room for neither, or with ctx's error.
func (ln *lending) Lend(ctx context.Context, o LendOptions) (*Lent, error) {
	deadline := ln.Opts.Now().Add(lendWait)
	for {
		l, id, space, err := ln.lendHot(&o)
		switch {
		case errors.Is(err, state.ErrHollow):
			return ln.lendHollow(ctx, &o, id)
		case err == nil:
			return ln.lendSummed(l)
		case space == nil:
			return nil, err
		}
		left := deadline.Sub(ln.Opts.Now())
		if left <= 0 {
			return nil, err
		}
		if err := state.WaitSpace(ctx, space, left); err != nil {
			return nil, err
		}
	}
}

// lendHot lends a block that is in memory. It fails with ErrHollow if the block is not in memory. If a handle may
// still change the block, it fails and returns a channel to wait on.
func (ln *lending) lendHot(o *LendOptions) (*Lent, index.ID, <-chan struct{}, error) {
	ln.Mu.Lock()
	id := ln.Mu.Ix.Walk(o.Path)
	var en *index.Entry
	if id != 0 {
		en = ln.Mu.Ix.At(id)
	}
	if id == 0 || en.IsDir() || !ln.holdsLocked(id, en) || o.Seq != 0 && en.Seq != o.Seq {
		ln.Mu.Unlock()
		return nil, 0, nil, block.ErrNotFound
	}
	if f := ln.Mu.Files[id]; f != nil && f.HandlesLocked() > 0 {
		space := ln.Mu.Room.Space()
		ln.Mu.Unlock()
		return nil, id, space, block.ErrPending
	}
	if !en.InMemory() {
		ln.Mu.Unlock()
		return nil, id, nil, state.ErrHollow
	}
	blob := driver.BlobID(en.Blob)
	l := &Lent{id: id, blob: blob}
	ln.holdingLocked(id, en, o.Path, &l.Holding)
	l.Dirs = ln.AttrsLocked(id, en).Dirs
	en.Opens++
	if en.Opens == 1 {
		ln.ClassifyLocked(id, en)
	}
	if en.Ranked() {
		ln.Mu.Room.Touch(state.BillOf(ln.Mu.Room, en), uint32(id))
	}
	ln.Mu.Unlock()
	file, err := ln.Primary.Open(blob)
	if err != nil {
		ln.writing.CloseRead(id)
		return nil, id, nil, err
	}
	l.File = file
	l.close = func() {
		file.Close()
		ln.writing.CloseRead(id)
	}
	return l, id, nil, nil
}

// lendSummed computes the checksum of a loan if it has none. It reads the lent file, because the entry may have
// another version by now.
func (ln *lending) lendSummed(l *Lent) (*Lent, error) {
	if l.Sum.Valid {
		return l, nil
	}
	d := block.NewChecksum()
	n, err := io.Copy(d, io.NewSectionReader(l.File, 0, l.Size))
	if err == nil && n < l.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		l.Close()
		return nil, &block.Error{Op: "lend", Tier: "memory", Err: err}
	}
	l.Sum = block.Checksum{Sum: d.Sum64(), Valid: true}
	ln.Mu.Lock()
	en := ln.Mu.Ix.At(l.id)
	same := en.Seq == l.Seq && driver.BlobID(en.Blob) == l.blob && en.Flags&(index.FlagUncommitted|index.FlagSum) == 0
	if same {
		en.Sum, en.Flags = l.Sum.Sum, en.Flags|index.FlagSum
	}
	ln.Mu.Unlock()
	if same {
		if err := ln.writing.WriteRecord(l.id, nil); err != nil { // the next process computes the checksum again
			ln.Log.Warn("cannot write the record of a lent block", zap.String("path", l.Path), zap.Error(err))
		}
	}
	return l, nil
}

// lendHollow lends a block that only a device of this node has.
func (ln *lending) lendHollow(ctx context.Context, o *LendOptions, id index.ID) (*Lent, error) {
	ln.Mu.Lock()
	if !ln.Mu.Ix.Valid(id) || !ln.HollowLocked(id, ln.Mu.Ix.At(id)) {
		ln.Mu.Unlock()
		return nil, block.ErrPending // the block has just changed
	}
	en := ln.Mu.Ix.At(id)
	en.Lookups++ // so that the entry stays
	roomy := !ln.Mu.Room.High(state.ChargeOf(en.Size))
	ln.Mu.Unlock()
	defer ln.names.Forget(id, 1)
	if !roomy {
		return ln.lendStream(ctx, o)
	}
	if err := ln.lower.PromoteOwn(ctx, id); err != nil {
		return nil, state.MissError(err)
	}
	defer ln.writing.CloseRead(id) // the pin of PromoteOwn
	l, _, _, err := ln.lendHot(o)
	if err != nil {
		return nil, state.MissError(err)
	}
	return ln.lendSummed(l)
}

// lendStream lends a block from a file of its own, into which it reads the block from a device.
func (ln *lending) lendStream(ctx context.Context, o *LendOptions) (*Lent, error) {
	ln.Mu.Lock()
	id := ln.Mu.Ix.Walk(o.Path)
	if id == 0 || !ln.HollowLocked(id, ln.Mu.Ix.At(id)) {
		ln.Mu.Unlock()
		return nil, block.ErrPending
	}
	en := ln.Mu.Ix.At(id)
	l := &Lent{}
	ln.holdingLocked(id, en, o.Path, &l.Holding)
	l.Dirs = ln.AttrsLocked(id, en).Dirs
	have := ln.OwnTiers(en)
	charge := state.ChargeOf(en.Size)
	ln.Mu.Unlock()
	if have == 0 || !ln.streams.Take(charge, maxStreamBytes) {
		return nil, block.ErrNoSpace
	}
	free := func() { ln.streams.Give(charge) }
	file, err := memoryFile()
	if err != nil {
		free()
		return nil, err
	}
	l.File = file
	l.close = func() {
		ln.TellFreed(file) // else a transport that registered the file keeps its pages, uncounted
		file.Close()
		free()
	}
	if err := ln.streamFrom(ctx, ln.Tiers[bits.TrailingZeros16(have)], l); err != nil {
		return nil, err
	}
	return l, nil
}

// streamFrom loads the block of l from a tier into the file of l. If it fails, it closes l once nothing writes to the
// file any more.
func (ln *lending) streamFrom(ctx context.Context, s *state.Secondary, l *Lent) error {
	key, err := block.ParseKey(l.Path)
	if err != nil {
		l.Close()
		return err
	}
	done := make(chan *driver.Outcome, 1)
	s.Tier.Load(&driver.Job{
		ID: driver.JobID(ln.Jobs.Add(1)), Promotion: true,
		Blocks: []driver.Transfer{{Key: key, Size: l.Size, Sum: l.Sum, File: l.File}},
		Done:   func(r *driver.Result) { done <- &r.Outcomes[0] },
	})
	select {
	case o := <-done:
		if o.Status == driver.Loaded {
			l.Sum = o.Sum
			return nil
		}
		l.Close()
		return state.MissError(errors.Join(block.ErrNotFound, o.Err))
	case <-ctx.Done():
		go func() { // ends when the tier has done the job
			<-done
			l.Close()
		}()
		return ctx.Err()
	}
}

// memoryFile returns a file in memory without a name.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("kvfs-stream", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "kvfs-stream"), nil
}
