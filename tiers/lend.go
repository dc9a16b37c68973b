package tiers

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
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

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
func (e *Engine) Lend(ctx context.Context, o LendOptions) (*Lent, error) {
	deadline := e.st.Opts.Now().Add(lendWait)
	for {
		l, id, space, err := e.lendHot(&o)
		switch {
		case errors.Is(err, state.ErrHollow):
			return e.lendHollow(ctx, &o, id)
		case err == nil:
			return e.lendSummed(l)
		case space == nil:
			return nil, err
		}
		left := deadline.Sub(e.st.Opts.Now())
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
func (e *Engine) lendHot(o *LendOptions) (*Lent, index.ID, <-chan struct{}, error) {
	e.st.Mu.Lock()
	id := e.st.Mu.Ix.Walk(o.Path)
	var en *index.Entry
	if id != 0 {
		en = e.st.Mu.Ix.At(id)
	}
	if id == 0 || en.IsDir() || !e.holdsLocked(id, en) || o.Seq != 0 && en.Seq() != o.Seq {
		e.st.Mu.Unlock()
		return nil, 0, nil, block.ErrNotFound
	}
	if f := e.st.Mu.Files[id]; f != nil && f.HandlesLocked() > 0 {
		space := e.st.Mu.Room.Space()
		e.st.Mu.Unlock()
		return nil, id, space, block.ErrPending
	}
	if !en.InMemory() {
		e.st.Mu.Unlock()
		return nil, id, nil, state.ErrHollow
	}
	blob := driver.BlobID(en.Blob())
	l := &Lent{id: id, blob: blob}
	e.holdingLocked(id, en, o.Path, &l.Holding)
	l.Dirs = e.st.AttrsLocked(id, en).Dirs
	e.st.ApplyLocked(catalog.Opened{ID: id, N: 1, Lent: true})
	e.st.Mu.Unlock()
	file, err := e.st.Primary.Open(blob)
	if err != nil {
		e.Names.CloseRead(id)
		return nil, id, nil, err
	}
	l.File = file
	l.close = func() {
		file.Close()
		e.Names.CloseRead(id)
	}
	return l, id, nil, nil
}

// lendSummed computes the checksum of a loan if it has none. It reads the lent file, because the entry may have
// another version by now.
func (e *Engine) lendSummed(l *Lent) (*Lent, error) {
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
	e.st.Mu.Lock()
	en := e.st.Mu.Ix.At(l.id)
	same := en.Seq() == l.Seq && driver.BlobID(en.Blob()) == l.blob && en.Flags()&(index.FlagUncommitted|index.FlagSum) == 0
	if same {
		e.st.ApplyLocked(catalog.Summed{ID: l.id, Sum: l.Sum.Sum})
	}
	e.st.Mu.Unlock()
	if same {
		if err := e.Files.WriteRecord(l.id, nil); err != nil { // the next process computes the checksum again
			e.st.Log.Warn("cannot write the record of a lent block", zap.String("path", l.Path), zap.Error(err))
		}
	}
	return l, nil
}

// lendHollow lends a block that only a device of this node has.
func (e *Engine) lendHollow(ctx context.Context, o *LendOptions, id index.ID) (*Lent, error) {
	e.st.Mu.Lock()
	if !e.st.Mu.Ix.Valid(id) || !e.st.NonresidentLocked(id, e.st.Mu.Ix.At(id)) {
		e.st.Mu.Unlock()
		return nil, block.ErrPending // the block has just changed
	}
	en := e.st.Mu.Ix.At(id)
	e.st.ApplyLocked(catalog.Referred{ID: id}) // so that the entry stays
	roomy := !e.st.Mu.Room.High(catalog.ChargeOf(en.Size()))
	e.st.Mu.Unlock()
	defer e.Names.Forget(id, 1)
	if !roomy {
		return e.lendStream(ctx, o)
	}
	if err := e.Transfer.Promote(ctx, id, transfer.Want{Own: true}); err != nil {
		return nil, state.MissError(err)
	}
	defer e.Names.CloseRead(id) // the pin of the promotion
	l, _, _, err := e.lendHot(o)
	if err != nil {
		return nil, state.MissError(err)
	}
	return e.lendSummed(l)
}

// lendStream lends a block from a file of its own, into which it reads the block from a device.
func (e *Engine) lendStream(ctx context.Context, o *LendOptions) (*Lent, error) {
	e.st.Mu.Lock()
	id := e.st.Mu.Ix.Walk(o.Path)
	if id == 0 || !e.st.NonresidentLocked(id, e.st.Mu.Ix.At(id)) {
		e.st.Mu.Unlock()
		return nil, block.ErrPending
	}
	en := e.st.Mu.Ix.At(id)
	l := &Lent{}
	e.holdingLocked(id, en, o.Path, &l.Holding)
	l.Dirs = e.st.AttrsLocked(id, en).Dirs
	have, unread := e.st.OwnTiers(en), en.Flags()&index.FlagUnread != 0
	charge := catalog.ChargeOf(en.Size())
	e.st.Mu.Unlock()
	if have == 0 || !e.streams.Take(charge, maxStreamBytes) {
		return nil, block.ErrNoSpace
	}
	free := func() { e.streams.Give(charge) }
	fd, err := unix.MemfdCreate("kvfs-stream", unix.MFD_CLOEXEC)
	if err != nil {
		free()
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "kvfs-stream")
	l.File = file
	l.close = func() {
		e.st.TellFreed(file) // else a transport that registered the file keeps its pages, uncounted
		file.Close()
		free()
	}
	if err := e.streamFrom(ctx, e.st.Tiers[bits.TrailingZeros16(have)], l, unread); err != nil {
		return nil, err
	}
	return l, nil
}

// streamFrom loads the block of l from a tier into the file of l. unread: its attributes of processes come with it. If it fails, it closes l once nothing writes to the
// file any more.
func (e *Engine) streamFrom(ctx context.Context, s *state.Secondary, l *Lent, unread bool) error {
	key, err := block.ParseKey(l.Path)
	if err != nil {
		l.Close()
		return err
	}
	done := make(chan *driver.Outcome, 1)
	tr := driver.Transfer{Key: key, Size: l.Size, Sum: l.Sum, File: l.File}
	if unread {
		tr.Attrs.Seq = l.Seq
	}
	s.Tier.Load(&driver.Job{
		ID: driver.JobID(e.st.Jobs.Add(1)), Promotion: true,
		Blocks: []driver.Transfer{tr},
		Done:   func(r *driver.Result) { done <- &r.Outcomes[0] },
	})
	select {
	case o := <-done:
		if o.Status == driver.Loaded {
			l.Sum = o.Sum
			if unread && o.Attrs != nil {
				l.User = o.Attrs.User
			}
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
