package tiers

import (
	"context"
	"errors"

	"github.com/kvfs/kvfs/tiers/driver"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// cascadeLocked has a block copied to every tier that lacks it. It is called when a
// block is committed and nobody has it open for writing.
func (e *Engine) cascadeLocked(id index.ID, en *index.Entry) {
	for _, s := range e.tiers {
		e.cascadeToLocked(s, id, en)
	}
}

// cascadable reports whether blocks like this one go to secondary tiers at all:
// not what is held under a temporary name, and not the raw files of pinned
// groups and plain names, which change at any time.
func (e *Engine) cascadableLocked(id index.ID, en *index.Entry) bool {
	return en.Mode&modeType == modeRegular && en.Flags&flagUncommitted == 0 && en.Blob != 0 &&
		e.mu.ix.Linked(id) && e.kindLocked(en) == draft.Block
}

func (e *Engine) cascadeToLocked(s *secondary, id index.ID, en *index.Entry) {
	synced := en.Flags&flagSynced != 0 && s == e.keeper()
	if (en.Tiers|en.Storing)&s.bit != 0 || s.opts.Cascade == CascadeOff && !synced || !e.cascadableLocked(id, en) {
		return
	}
	if s.seen != nil && !synced && !s.seen.again(e.pathHashLocked(id)) {
		en.Flags |= flagOnceSeen
		s.stats.AdmissionRejected++
		return
	}
	if s.opts.Cascade == CascadeOnEvict && !synced {
		return // cleanLocked sees to it
	}
	if s.stats.QueuedBytes+en.Size > s.opts.QueueBytes && s.stats.QueuedBlocks > 0 && !synced {
		if s.deferred.len() < maxDeferred {
			s.deferred.push(deferredStore{id, en.Seq})
		}
		return
	}
	e.queueStoreLocked(s, id, en, false)
}

// queueStoreLocked puts a block into the queue of a tier: at the front if somebody
// waits for it.
func (e *Engine) queueStoreLocked(s *secondary, id index.ID, en *index.Entry, urgent bool, waiters ...chan<- error) *storeOp {
	op := &storeOp{tier: s, id: id, seq: en.Seq, bytes: en.Size, force: urgent || en.Flags&flagSynced != 0 && s == e.keeper(), waiters: waiters}
	s.stats.QueuedBlocks++
	s.stats.QueuedBytes += op.bytes
	if urgent {
		s.stores.pushFront(op)
	} else {
		s.stores.push(op)
	}
	en.Storing |= s.bit
	s.wakeUp()
	return op
}

// runCascade hands the queues of one tier over to it.
func (e *Engine) runCascade(ctx context.Context, s *secondary) {
	for {
		for e.dispatch(s) {
			if ctx.Err() != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
	}
}

// dispatch takes the next piece of work from the queues of a tier and begins it.
// False: there is nothing that can begin now.
func (e *Engine) dispatch(s *secondary) bool {
	e.mu.Lock()
	begin := e.nextLocked(s)
	e.mu.Unlock()
	if begin == nil {
		return false
	}
	begin()
	return true
}

// nextLocked takes the next piece of work from the queues of a tier and returns what begins it, without the
// lock. Nil: there is nothing that can begin now.
func (e *Engine) nextLocked(s *secondary) (begin func()) {
	if e.expandKeyedLocked(s) {
		return e.nextKeyedLocked(s)
	}
	if again := s.again; len(again) > 0 {
		s.again = nil
		return func() {
			for _, p := range again {
				e.askAgain(p)
			}
		}
	}
	e.undeferLocked(s)
	if s.stores.len() == 0 {
		return nil
	}
	if fn := s.stores.front().barrier; fn != nil {
		if s.storing > 0 {
			return nil
		}
		s.stores.pop()
		return func() { fn(nil) }
	}
	if s.storing >= maxStoreJobs {
		return nil
	}
	ops, invalid := e.takeStoresLocked(s)
	if len(ops)+len(invalid) == 0 {
		return nil
	}
	return func() {
		for _, op := range invalid {
			op.notify(block.ErrNotFound)
		}
		if len(ops) > 0 {
			e.beginStore(s, ops)
		}
	}
}

// expandKeyedLocked reports whether removals, updates or barriers are queued, and puts the updates that a
// directory's rename stands for in its place if that is the first of them.
func (e *Engine) expandKeyedLocked(s *secondary) bool {
	for s.keyed.len() > 0 && s.keyed.front().moved != nil {
		e.expandMovedLocked(s)
	}
	return s.keyed.len() > 0
}

// nextKeyedLocked is nextLocked for what expandKeyedLocked has found: an update, or removals up to one whose
// key is being stored.
func (e *Engine) nextKeyedLocked(s *secondary) (begin func()) {
	const batch = 256
	if barrier := s.keyed.front().barrier; barrier != nil {
		s.keyed.pop()
		return barrier
	}
	var ops []keyedOp
	for s.keyed.len() > 0 && len(ops) < batch {
		op := s.keyed.front()
		_, busy := s.busy[op.key]
		_, busyTo := s.busy[op.to]
		alone := op.attrs != nil || op.barrier != nil || op.moved != nil
		if busy || alone && (busyTo || len(ops) > 0) {
			break
		}
		ops = append(ops, s.keyed.pop())
		if alone {
			break
		}
	}
	if len(ops) == 0 {
		return nil
	}
	return func() { e.doKeyed(s, ops) }
}

// doKeyed does removals, or one update.
func (e *Engine) doKeyed(s *secondary, ops []keyedOp) {
	if ops[0].attrs != nil {
		e.update(s, ops[0])
	} else {
		keys := make([]block.Key, len(ops))
		for i := range ops {
			keys[i] = ops[i].key
		}
		s.tier.Remove(keys)
	}
	e.mu.Lock()
	for _, op := range ops {
		s.doneKeyedLocked(op)
	}
	e.mu.Unlock()
}

// update gives a block another name or other attributes in a tier.
func (e *Engine) update(s *secondary, op keyedOp) {
	if s.recorder != nil && s.recorder.Update(op.key, op.to, op.attrs) {
		return
	}
	if s.recorder == nil {
		s.tier.Remove([]block.Key{op.key, op.to})
	}
	e.storeAnew(s, op)
}

// dispatchRemovals does removals and updates that are left when the engine closes, so
// that they are not forgotten, waiting for the stores under way that they follow.
// False: none is left, or ctx is done.
func (e *Engine) dispatchRemovals(ctx context.Context, s *secondary) bool {
	var begin func()
	e.mu.Lock()
	left := e.expandKeyedLocked(s)
	if left {
		begin = e.nextKeyedLocked(s)
	}
	e.mu.Unlock()
	switch {
	case !left:
		return false
	case begin != nil:
		begin()
		return true
	}
	select {
	case <-s.wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// storeAnew stores a block under its new name in a tier that cannot rename, or that
// has lost it. One that only that tier had is gone.
func (e *Engine) storeAnew(s *secondary, op keyedOp) {
	var g gone
	id := op.id
	e.mu.Lock()
	if e.mu.ix.Valid(id) {
		if en := e.mu.ix.At(id); en.Tiers&s.bit != 0 && en.Seq == op.attrs.Seq {
			e.forgetCopyLocked(s, id, en, fate.ReasonRenamed, &g)
			if e.mu.ix.Valid(id) && en.Blob != 0 {
				e.cascadeToLocked(s, id, en)
			}
		}
	}
	e.mu.Unlock()
	e.finish(&g)
}

// undeferLocked moves blocks that found the queue full into it, as far as it has
// room now.
func (e *Engine) undeferLocked(s *secondary) {
	for s.deferred.len() > 0 {
		d := s.deferred.front()
		if !e.mu.ix.Valid(d.id) {
			s.deferred.pop()
			continue
		}
		en := e.mu.ix.At(d.id)
		if en.Seq != d.seq || (en.Tiers|en.Storing)&s.bit != 0 || !e.cascadableLocked(d.id, en) {
			s.deferred.pop()
			continue
		}
		if s.stats.QueuedBytes+en.Size > s.opts.QueueBytes && s.stats.QueuedBlocks > 0 {
			return
		}
		s.deferred.pop()
		e.queueStoreLocked(s, d.id, en, false)
	}
}

// takeStoresLocked takes the stores of the next job from the queue, and those that
// have become pointless.
func (e *Engine) takeStoresLocked(s *secondary) (ops, invalid []*storeOp) {
	var bytes int64
	for s.stores.len() > 0 && len(ops) < storeJobKeys {
		op := s.stores.front()
		if op.barrier != nil || len(ops) > 0 && bytes+op.bytes > storeJobBytes {
			break
		}
		if !e.storableLocked(op) {
			s.stores.pop()
			e.unqueueLocked(s, op)
			e.unstoredLocked(s, op, e.storedEntryLocked(s, op))
			invalid = append(invalid, op)
			continue
		}
		op.key = e.keyLocked(op.id)
		if _, busy := s.busy[op.key]; busy {
			break
		}
		s.stores.pop()
		s.busy[op.key] = struct{}{}
		e.mu.underWay[op] = struct{}{}
		bytes += op.bytes
		ops = append(ops, op)
	}
	if len(ops) > 0 {
		s.storing++
	}
	return ops, invalid
}

// storableLocked reports whether the block of op is still there, in that version, and may be copied: not
// while it is open for writing, unless fsync asks for it.
func (e *Engine) storableLocked(op *storeOp) bool {
	if !e.mu.ix.Valid(op.id) {
		return false
	}
	en := e.mu.ix.At(op.id)
	return en.Seq == op.seq && en.Blob != 0 && e.mu.ix.Linked(op.id) && en.Flags&flagUncommitted == 0 && (op.force || !e.openForWritingLocked(op.id))
}

// unqueueLocked takes op out of the accounts of the queue.
func (e *Engine) unqueueLocked(s *secondary, op *storeOp) {
	s.stats.QueuedBlocks--
	s.stats.QueuedBytes -= op.bytes
	delete(e.mu.underWay, op)
	if op.leaving {
		e.mu.leaving -= op.bytes
	}
}

func (op *storeOp) notify(err error) {
	for _, w := range op.waiters {
		w <- err
	}
}

// beginStore opens the files of a job and gives it to the tier.
func (e *Engine) beginStore(s *secondary, ops []*storeOp) {
	job := &driver.Job{ID: driver.JobID(e.jobs.Add(1))}
	var begun, failed []*storeOp
	for _, op := range ops {
		t, err := e.openTransfer(op)
		if err != nil {
			failed = append(failed, op)
			continue
		}
		e.mu.Lock()
		job.Force = job.Force || op.force
		e.mu.Unlock()
		job.Blocks = append(job.Blocks, t)
		begun = append(begun, op)
	}
	if len(failed) > 0 {
		e.mu.Lock()
		for _, op := range failed {
			delete(s.busy, op.key)
			e.unqueueLocked(s, op)
			e.unstoredLocked(s, op, e.storedEntryLocked(s, op))
		}
		if len(begun) == 0 {
			s.storing--
		}
		e.mu.Unlock()
		for _, op := range failed {
			op.notify(block.ErrNotFound)
		}
	}
	if len(begun) == 0 {
		s.wakeUp()
		return
	}
	job.Done = e.answered(s, job, func(r *driver.Result) { e.stored(s, job, begun, r) })
	j := StoreJob{ID: job.ID, Tier: s.opts.Name, Keys: len(begun), Started: e.opts.Now()}
	for _, op := range begun {
		j.Bytes += op.bytes
	}
	e.mu.Lock()
	s.storeJobs[job.ID] = j
	e.mu.Unlock()
	s.tier.Store(job)
}

// openTransfer opens the file of a block that is to be stored.
func (e *Engine) openTransfer(op *storeOp) (driver.Transfer, error) {
	e.mu.Lock()
	if !e.storableLocked(op) {
		e.mu.Unlock()
		return driver.Transfer{}, block.ErrNotFound
	}
	en := e.mu.ix.At(op.id)
	f := e.mu.files[op.id]
	t := driver.Transfer{Key: op.key, Size: en.Size, Attrs: e.attrsLocked(op.id, en)}
	t.Volatile = f != nil && len(f.handles) > 0 // fsync was called
	if en.Flags&flagSum != 0 && !t.Volatile {
		t.Sum = block.Checksum{Sum: en.Sum, Valid: true}
	}
	blob := driver.BlobID(en.Blob)
	e.mu.Unlock()
	file, err := e.primary.Open(blob)
	if err != nil {
		return t, err
	}
	t.File = file
	if t.Volatile {
		fi, err := file.Stat()
		if err == nil && fi.Size() != t.Size { // it is not what was committed any more
			err = block.ErrNotFound
		}
		if err != nil {
			return t, errors.Join(err, file.Close())
		}
	}
	return t, nil
}

// stored follows the end of a store job.
func (e *Engine) stored(s *secondary, job *driver.Job, ops []*storeOp, r *driver.Result) {
	for i := range job.Blocks {
		job.Blocks[i].File.Close()
	}
	errs := make([]error, len(ops))
	var g gone
	e.mu.Lock()
	s.storing--
	delete(s.storeJobs, job.ID)
	for i, op := range ops {
		delete(s.busy, op.key)
		e.unqueueLocked(s, op)
		errs[i] = e.storedOneLocked(s, op, &r.Outcomes[i])
		e.leftLocked(op, &g)
	}
	e.mu.room.Signal()
	e.mu.Unlock()
	e.finish(&g)
	for i, op := range ops {
		op.notify(errs[i])
		if errs[i] != nil {
			e.log.Debug("cascade", zap.String("tier", s.opts.Name), zap.Stringer("key", op.key), zap.Error(errs[i]))
		}
	}
	s.wakeUp()
}

// storedEntryLocked returns the entry that op was about, if it is still there in
// that version, and ends its hold on it.
func (e *Engine) storedEntryLocked(s *secondary, op *storeOp) *index.Entry {
	if !e.mu.ix.Valid(op.id) {
		return nil
	}
	en := e.mu.ix.At(op.id)
	if en.Seq != op.seq {
		return nil
	}
	en.Storing &^= s.bit
	e.strayLocked(op.id, en)
	if !e.mu.ix.Linked(op.id) || en.Flags&flagUncommitted != 0 {
		return nil
	}
	return en
}

func (e *Engine) storedOneLocked(s *secondary, op *storeOp, o *driver.Outcome) error {
	en := e.storedEntryLocked(s, op)
	switch {
	case op.torn && o.Status == driver.Stored && en != nil: // it was written meanwhile
		s.queueKeyedLocked(keyedOp{key: op.key})
		e.cascadeToLocked(s, op.id, en)
		return nil
	case o.Status == driver.Stored, o.Status == driver.Skipped && o.Err == nil:
		if o.Status == driver.Stored {
			s.stats.Cascaded++
			s.stats.CascadedBytes += uint64(o.Bytes)
		}
		if en == nil {
			return nil // what took its place has seen to the removal of this copy
		}
		if s == e.remote && op.key != e.keyLocked(op.id) { // the copy has the old name
			e.cascadeToLocked(s, op.id, en)
			return nil
		}
		if s == e.remote && en.Tiers&s.bit == 0 {
			e.far.Watch(e.keyLocked(op.id))
		}
		en.Tiers |= s.bit
		en.Flags &^= flagRefused | flagOnceSeen
		if s == e.keeper() {
			en.Flags &^= flagSynced // it has taken the place of what was there
		}
		if o.Sum.Valid && en.Flags&flagSum == 0 {
			en.Sum, en.Flags = o.Sum.Sum, en.Flags|flagSum
		}
		e.tierEventLocked(BlockStored, s.opts.Name, op.id, fate.Cause{})
		if e.mu.room.Used() > e.opts.CapacityBytes {
			e.wakeEvictor() // it can go now: see shrinkLocked
		}
		return nil
	case o.Status == driver.Skipped:
		s.stats.CascadeSkipped++
	default:
		s.stats.CascadeFailed++
		if errors.Is(o.Err, errAnswer) && s != e.remote { // it may hold it all the same
			s.queueKeyedLocked(keyedOp{key: op.key})
		}
	}
	if en != nil {
		en.Flags |= flagRefused
	}
	e.unstoredLocked(s, op, en)
	if o.Err == nil {
		return &block.Error{Op: "store", Tier: s.opts.Name, Key: op.key, Err: block.ErrUnavailable}
	}
	return o.Err
}

// unstoredLocked follows the end of a store that did not come about: what fsync left
// under the name (an unfinished file, the block that was replaced) must not be taken
// for the block. en may be nil.
func (e *Engine) unstoredLocked(s *secondary, op *storeOp, en *index.Entry) {
	if en != nil && op.leaving {
		e.classifyLocked(op.id, en) // it goes another time
	}
	if en != nil && en.Flags&flagSynced != 0 && s == e.keeper() {
		en.Flags &^= flagSynced
		key := e.keyLocked(op.id)
		s.queueKeyedLocked(keyedOp{key: key})
		if op.key != (block.Key{}) && op.key != key { // renamed while it was under way
			s.queueKeyedLocked(keyedOp{key: op.key})
		}
	}
}

// voidStoresLocked follows that a block is gone of which stores are under way: its entry
// may become that of another block.
func (e *Engine) voidStoresLocked(id index.ID, en *index.Entry) {
	if en.Storing == 0 {
		return
	}
	for op := range e.mu.underWay {
		if op.id == id && op.seq == en.Seq {
			op.id = 0
		}
	}
}

// retargetLocked follows a block whose name and bytes went from one entry to
// another, or that got another commit number: stores that are queued or under way
// are about the latter now.
func (e *Engine) retargetLocked(from, to index.ID, seq, newSeq uint64) {
	en := e.mu.ix.At(from)
	if en.Storing == 0 {
		return
	}
	move := func(op *storeOp) {
		if op.id == from && op.seq == seq && op.barrier == nil {
			op.id, op.seq = to, newSeq
		}
	}
	for _, s := range e.tiers {
		for _, op := range s.stores.items[s.stores.head:] {
			move(op)
		}
	}
	for op := range e.mu.underWay {
		move(op)
	}
	if from != to {
		e.mu.ix.At(to).Storing, en.Storing = en.Storing, 0
	}
}

// cleanLocked has a block that is to be evicted copied down first, and reports
// whether that is under way. What only others have besides goes to a device of this node
// if there is one: they may evict it at any time. leaving: see leaveLocked.
func (e *Engine) cleanLocked(id index.ID, en *index.Entry, leaving bool) bool {
	if en.Storing != 0 {
		return true
	}
	if en.Flags&(flagRefused|flagOnceSeen) != 0 || !e.cascadableLocked(id, en) {
		return false
	}
	for _, s := range e.tiers {
		if s.opts.Cascade == CascadeOff || en.Tiers != 0 && s == e.remote || en.Tiers&s.bit != 0 {
			continue
		}
		if s.stats.QueuedBytes+en.Size <= s.opts.QueueBytes || s.stats.QueuedBlocks == 0 {
			op := e.queueStoreLocked(s, id, en, false)
			if op.leaving = leaving && s.opts.Cascade == CascadeOnEvict; op.leaving {
				e.mu.leaving += op.bytes
			}
		}
		return true // queued, or its turn will come
	}
	return false
}

// cleanSome is cleanLocked for some blocks, and waits until they are copied down, as far as the tiers take them.
// Each is tried once: of one that is being written no copy is made.
func (e *Engine) cleanSome(ctx context.Context, ids []index.ID) error {
	for len(ids) > 0 && e.lazy != 0 {
		var later []index.ID
		e.mu.Lock()
		for _, id := range ids {
			if !e.mu.ix.Valid(id) || !e.mu.ix.Linked(id) {
				continue
			}
			if en := e.mu.ix.At(id); en.Tiers|en.Storing == 0 && e.cleanLocked(id, en, false) && en.Storing == 0 {
				later = append(later, id) // the queue is full
			}
		}
		e.mu.Unlock()
		if err := e.Drain(ctx); err != nil {
			return err
		}
		if len(later) == len(ids) {
			return nil
		}
		ids = later
	}
	return nil
}

// storeNow copies a block down to a tier ahead of all others, and waits until it is
// there. With force set the tier's write budget and admission do not count. False: it
// is not for that tier.
func (e *Engine) storeNow(ctx context.Context, w Waiter, s *secondary, id index.ID, force bool) (bool, error) {
	for {
		done := make(chan error, 1)
		joined := false
		e.mu.Lock()
		en := e.mu.ix.At(id)
		switch {
		case en.Tiers&s.bit != 0:
			e.mu.Unlock()
			return true, nil
		case e.mu.closed:
			e.mu.Unlock()
			return false, block.ErrClosed
		case !e.cascadableLocked(id, en):
			e.mu.Unlock()
			return false, nil
		case !force && s.seen != nil && (en.Flags&flagOnceSeen != 0 || !s.seen.has(e.pathHashLocked(id))):
			e.mu.Unlock()
			return false, nil // the end of the write counts it
		case en.Storing&s.bit != 0 && e.joinLocked(s, id, en.Seq, force, done):
			joined = true
		default:
			op := e.queueStoreLocked(s, id, en, true, done)
			op.force = op.force && force || en.Flags&flagSynced != 0 && s == e.keeper()
		}
		e.mu.Unlock()
		err := waitStored(ctx, w, done)
		if joined && force && errors.Is(err, block.ErrBudget) {
			continue // it was under way when it became urgent
		}
		return true, err
	}
}

func waitStored(ctx context.Context, w Waiter, done <-chan error) error {
	return storedError(waitDone(ctx, w, done))
}

func waitDone(ctx context.Context, w Waiter, done <-chan error) error {
	select {
	case err := <-done: // already
		return err
	default:
	}
	announce(w)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// storedError is what a store means to who waits for it: a block that was
// replaced or removed meanwhile needs no copy.
func storedError(err error) error {
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	return err
}

// joinLocked adds a waiter to the store of a block that is queued or under way. A
// queued one is moved to the front.
func (e *Engine) joinLocked(s *secondary, id index.ID, seq uint64, force bool, done chan<- error) bool {
	for op := range e.mu.underWay {
		if op.tier == s && op.id == id && op.seq == seq {
			op.waiters = append(op.waiters, done)
			return true
		}
	}
	return e.joinQueuedLocked(s, id, seq, force, done)
}

// joinQueuedLocked is joinLocked for a store that has not begun.
func (e *Engine) joinQueuedLocked(s *secondary, id index.ID, seq uint64, force bool, done chan<- error) bool {
	queued := s.stores.items[s.stores.head:]
	for i, op := range queued {
		if op.id == id && op.seq == seq && op.barrier == nil {
			op.waiters, op.force = append(op.waiters, done), op.force || force
			copy(queued[1:i+1], queued[:i])
			queued[0] = op
			return true
		}
	}
	return false
}

// keeper returns the first tier that can make blocks durable, nil if there is none.
func (e *Engine) keeper() *secondary {
	for _, s := range e.tiers {
		if s.syncer != nil {
			return s
		}
	}
	return nil
}

// makeDurable waits until a committed block is stored and synced.
func (e *Engine) makeDurable(ctx context.Context, w Waiter, id index.ID) error {
	s := e.keeper()
	if s == nil {
		return nil
	}
	if ok, err := e.storeNow(ctx, w, s, id, true); err != nil || !ok {
		return err
	}
	return e.flushTier(ctx, w, s)
}

// flushTier waits until all that a tier holds is durable.
func (e *Engine) flushTier(ctx context.Context, w Waiter, s *secondary) error {
	told := make(chan error, 1) // of the removals and renames so far
	e.mu.Lock()
	s.keyed.push(keyedOp{barrier: func() { told <- nil }})
	e.mu.Unlock()
	s.wakeUp()
	if err := waitStored(ctx, w, told); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.syncer.Sync(func(err error) { done <- err })
	return waitStored(ctx, w, done)
}

// afterCommit does what follows a commit at once: it waits for the copy, if the
// cascade is synchronous or somebody called fsync before.
func (e *Engine) afterCommit(ctx context.Context, w Waiter, id index.ID, sync bool) error {
	if sync {
		return e.makeDurable(ctx, w, id)
	}
	for _, s := range e.tiers {
		if s.opts.Cascade != CascadeSync {
			continue
		}
		if _, err := e.storeNow(ctx, w, s, id, false); err != nil {
			e.log.Warn("block not copied", zap.String("tier", s.opts.Name), zap.Error(err))
		}
	}
	return nil
}

// closeTiers turns away who waits, and closes the secondary tiers, after the removals and updates that are left,
// now that nothing else is begun.
func (e *Engine) closeTiers(ctx context.Context) error {
	var waiting []*promotion
	var stores []*storeOp
	e.mu.Lock()
	for _, s := range e.tiers {
		waiting = append(append(waiting, s.again...), s.pending...)
		s.again, s.pending, s.pendingBytes = nil, nil, 0
		for s.stores.len() > 0 {
			op := s.stores.pop()
			if stores = append(stores, op); op.barrier == nil {
				e.unqueueLocked(s, op)
			}
		}
	}
	e.mu.Unlock()
	for _, p := range waiting {
		e.failPromotion(p, block.ErrClosed)
	}
	for _, op := range stores {
		if op.barrier != nil {
			op.barrier(block.ErrClosed)
		}
		op.notify(block.ErrClosed)
	}
	var errs []error
	for _, s := range e.tiers {
		for e.dispatchRemovals(ctx, s) {
		}
		errs = append(errs, s.tier.Close(ctx))
	}
	return errors.Join(errs...)
}
