package disk

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/durable"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"go.uber.org/zap"
)

// emptyPatience is how long the keeper waits for those who still read the old copies of blocks that
// it has moved.
const emptyPatience = time.Second

// takeOver moves the blocks of a slab into other slabs of its class, and gives the slab, or its room,
// to the class for slots of slotBytes. It reports whether that worked.
func (k *keeper) takeOver(s *slotmap.Slab, slotBytes int64) bool {
	t := k.tier
	t.mu.Lock()
	s.Retire()
	t.mu.Unlock()
	moved, err := k.empty(s)
	t.mu.Lock()
	// Perhaps a block is still being read, or the device went down. In the second case the blocks come
	// back at the next start.
	if err != nil || k.port.IsDown() || !s.DropEmpty() {
		if !errors.Is(err, errNotDurable) {
			s.Unretire()
		}
		t.mu.Unlock()
		t.log.Debug("slab not emptied", zap.String("device", k.dir), zap.Uint32("slab", s.Header.Number), zap.Int("moved", moved), zap.Error(err))
		return false
	}
	from := s.Header.SlotBytes
	t.mu.Unlock()
	k.recut(s, slotBytes)
	t.log.Debug("slab for another block size", zap.String("device", k.dir), zap.Uint32("slab", s.Header.Number),
		zap.Int64("from_slot_bytes", from), zap.Int64("slot_bytes", slotBytes), zap.Int("moved", moved))
	return true
}

// recut gives an empty slab without a class to the class for slots of slotBytes, or deletes it if no
// slot fits. A new epoch makes the old table void.
func (k *keeper) recut(s *slotmap.Slab, slotBytes int64) {
	t := k.tier
	t.mu.Lock()
	old, ok := k.space.Recut(s, slotBytes)
	t.mu.Unlock()
	if ok && s.Size > old {
		if err := k.port.Call(port.ByKeeper, func() error { return extend(s.File, s.Size) }); err != nil {
			t.mu.Lock()
			k.space.Uncut(s, old)
			_, ok = k.space.Recut(s, slotBytes) // as the device is full now, in the room that the slab has
			t.mu.Unlock()
		}
	}
	if !ok || k.writeSlabHeader(s) != nil {
		k.deleteSlab(s)
		return
	}
	trimmed := k.trim(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	if trimmed {
		k.space.Trim(s)
	}
	k.space.Add(s)
}

// trim shortens the file of a slab to what its header wants, and reports whether it did. A file that is
// longer is no harm. One that is shorter is, so the header must be durable before.
func (k *keeper) trim(s *slotmap.Slab) bool {
	want := s.Header.WantBytes()
	if s.Size <= want || k.syncNow() != nil {
		return false
	}
	return k.port.Call(port.ByKeeper, func() error { return s.File.OS().Truncate(want) }) == nil
}

// errNotDurable: blocks have moved, and their new copies may not be durable. Their old slots must not be
// used again: a power cut would leave an old header, with the data of another block.
var errNotDurable = errors.New("moved blocks are not durable")

// empty moves the blocks of a retired slab into other slabs, and waits until all its slots are free. If
// it fails, some may have moved. Except with errNotDurable, they are durable in their new slots.
func (k *keeper) empty(s *slotmap.Slab) (moved int, err error) {
	for n := 1; n > 0 && err == nil; moved += n {
		n, err = k.moveSome(s)
	}
	k.tier.counters.moved.Add(uint64(moved))
	if moved == 0 {
		return 0, err
	}
	err = cmp.Or(err, k.headers.flush())
	if e := k.syncNow(); e != nil {
		return moved, fmt.Errorf("%w: %w", errNotDurable, e)
	}
	if err == nil {
		k.awaitEmpty(s)
	}
	return moved, err
}

// awaitEmpty waits for a while until all slots of a retired slab are free.
func (k *keeper) awaitEmpty(s *slotmap.Slab) {
	t := k.tier
	timer := time.NewTimer(emptyPatience)
	defer timer.Stop()
	defer kick(k.wake) // whoever woke the keeper meanwhile wants something else, too
	for {
		t.mu.Lock()
		empty := s.Empty()
		t.mu.Unlock()
		if empty {
			return
		}
		select {
		case <-k.wake: // the slot map does that, too, when the slab becomes empty
		case <-timer.C:
			return
		case <-k.port.Down:
			return
		}
	}
}

// barrier is a call of Sync by the keeper.
type barrier chan error

// End implements durable.Call.
func (b barrier) End(err error) { b <- err }

// syncNow makes durable what was written so far, without the headers in the list.
func (k *keeper) syncNow() error {
	b := make(barrier, 1)
	k.syncer.Pass([]durable.Call{b}, nil)
	select {
	case err := <-b:
		return err
	case <-k.port.Down:
		return block.ErrUnavailable
	}
}

// moveSome copies some blocks of a retired slab into other slabs of its class, and makes their keys
// lead there. n is how many it tried; 0 if there is none left. It fails if a block cannot go anywhere.
// A block that cannot be read is lost.
func (k *keeper) moveSome(s *slotmap.Slab) (n int, err error) {
	t := k.tier
	bytes, _ := k.staging.Pieces(port.StagingBytes, 0, 1)
	t.mu.Lock()
	moves, left := t.mu.slots.BeginMoves(s, headerPages, bytes), s.Live()
	t.mu.Unlock()
	if len(moves) == 0 && left > 0 {
		return 0, block.ErrNoSpace
	}
	errs := k.copyMoves(moves, bytes)
	tried := k.writeMoves(moves, errs)
	t.mu.Lock()
	for i := range moves {
		var bad *writeError
		if errors.As(errs[i], &bad) && port.OfDevice(bad.err) {
			t.mu.slots.Quarantine(moves[i].To)
		}
		t.mu.slots.EndMove(&moves[i], errs[i] == nil, tried)
	}
	t.mu.Unlock()
	for i, e := range errs {
		m := &moves[i]
		if kind := lossOf(e); kind != nil && !isWriteError(e) {
			t.lose(m.From, m.Read, kind, e)
		} else if e != nil && !errors.Is(e, block.ErrNotFound) {
			err = e
		}
	}
	return len(moves), err
}

func isWriteError(err error) bool {
	var w *writeError
	return errors.As(err, &w)
}

// copyMoves copies the data of blocks, through a staging buffer of up to so many bytes.
func (k *keeper) copyMoves(moves []slotmap.Move, bytes int64) []error {
	errs := make([]error, len(moves))
	if len(moves) == 0 {
		return errs
	}
	var need int64
	for i := range moves {
		need += moves[i].Bytes()
	}
	buf, err := k.staging.Acquire(k.port.Ctx, min(need, bytes))
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer buf.Release()
	mem := buf.Bytes()
	if need > bytes { // a single block
		errs[0] = k.copyMove(&moves[0], mem)
		return errs
	}
	reads, mems := make([]directio.Op, len(moves)), make([][]byte, len(moves))
	for i := range moves {
		m := &moves[i]
		mems[i], mem = mem[:m.Bytes()], mem[m.Bytes():]
		reads[i] = directio.Op{Kind: directio.Read, File: m.Read.File, Mem: mems[i], Off: m.Read.Data}
	}
	_ = k.do(reads) // each op has its own error
	var writes []directio.Op
	var slabs []*slotmap.Slab
	var of []int
	for i := range moves {
		m := &moves[i]
		if reads[i].Err != nil || block.Sum(mems[i][:m.Size]) != m.Sum {
			errs[i] = k.copyMove(m, mems[i]) // again, as Load does
			continue
		}
		writes = append(writes, directio.Op{Kind: directio.Write, File: m.Write.File, Mem: mems[i], Off: m.Write.Data})
		slabs, of = append(slabs, m.Write.Slab), append(of, i)
	}
	_ = k.do(writes, slabs...)
	for j, i := range of {
		if err := writes[j].Err; err != nil {
			errs[i] = &writeError{err}
		}
	}
	return errs
}

// copyMove copies the data of one block through mem, in pieces.
func (k *keeper) copyMove(m *slotmap.Move, mem []byte) error {
	crc := block.NewChecksum()
	n := int64(len(mem))
	for off := int64(0); off < m.Bytes(); off += n {
		piece := mem[:min(n, m.Bytes()-off)]
		if err := k.do([]directio.Op{{Kind: directio.Read, File: m.Read.File, Mem: piece, Off: m.Read.Data + off}}); err != nil {
			return err
		}
		crc.Write(piece[:max(min(int64(len(piece)), m.Size-off), 0)])
		err := k.do([]directio.Op{{Kind: directio.Write, File: m.Write.File, Mem: piece, Off: m.Write.Data + off}}, m.Write.Slab)
		if err != nil {
			return &writeError{err}
		}
	}
	if crc.Sum64() != m.Sum.Sum {
		return errMismatch
	}
	return nil
}

// writeMoves writes the headers of the blocks that were copied, and adds new errors: ErrNotFound for a
// block that is gone. It reports whether any header may have been written. It uses the keeper's buffer.
func (k *keeper) writeMoves(moves []slotmap.Move, errs []error) (tried bool) {
	t := k.tier
	var ops []directio.Op
	var slabs []*slotmap.Slab
	var of []int
	t.mu.Lock()
	for i := range moves {
		m := &moves[i]
		if errs[i] != nil {
			continue
		}
		page := k.headers.buf.Bytes()[i*format.PageBytes:][:format.PageBytes]
		if !t.mu.slots.EncodeMove(m, page) {
			errs[i] = block.ErrNotFound
			continue
		}
		ops = append(ops, directio.Op{Kind: directio.Write, File: m.Write.File, Mem: page, Off: m.Write.Header})
		slabs, of = append(slabs, m.Write.Slab), append(of, i)
	}
	t.mu.Unlock()
	if len(ops) == 0 {
		return false
	}
	_ = k.do(ops, slices.Compact(slabs)...)
	for j, i := range of {
		if err := ops[j].Err; err != nil {
			errs[i] = &writeError{err}
		}
	}
	return true
}
