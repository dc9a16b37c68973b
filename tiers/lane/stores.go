package lane

import (
	"iter"
	"maps"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Store is one block to be copied down. Its fields are guarded by the lock.
type Store struct {
	ID    index.ID // 0: the block is gone, while this was under way
	Seq   uint64   // its version
	Bytes int64    // its size
	Force bool     // somebody waits for it: no write budget applies, and it may be open for writing

	// Burst is the burst in which the block was written; see driver.Transfer.
	Burst uint16
	// Leaving: the block has been evicted by its policy, and goes when it is stored.
	Leaving bool
	// Again: the tier was away when the block was to be stored first.
	Again bool
	// Torn: the block was opened for writing after this had begun.
	Torn bool

	Key     block.Key // under which it is stored, once it is begun
	barrier func(error)
	waiters []chan<- error // capacity for one more each
}

// Wait has done told what s came to. done must have room for that.
func (s *Store) Wait(done chan<- error) { s.waiters = append(s.waiters, done) }

// tell tells all that wait for s.
func (s *Store) tell(err error) {
	for _, w := range s.waiters {
		w <- err
	}
}

// is reports whether s is of a version of a block.
func (s *Store) is(id index.ID, seq uint64) bool {
	return s.ID == id && s.Seq == seq && s.barrier == nil
}

// deferred is a block that found the queue full.
type deferred struct {
	id  index.ID
	seq uint64
}

// FullLocked reports whether a block of size bytes has no room in the queue. There is always room for one.
func (l *Lane) FullLocked(size int64) bool {
	return l.stats.QueuedBytes+size > l.o.QueueBytes && l.stats.QueuedBlocks > 0
}

// PushLocked puts s into the queue, however full that is. urgent: before all others.
func (l *Lane) PushLocked(s *Store, urgent bool) {
	l.stats.QueuedBlocks++
	l.stats.QueuedBytes += s.Bytes
	if s.Leaving {
		l.leaving += s.Bytes
	}
	if urgent {
		l.stores.pushFront(s)
	} else {
		l.stores.push(s)
	}
	l.wakeUp()
}

// LeavingLocked returns the bytes of the stores that are Leaving.
func (l *Lane) LeavingLocked() int64 { return l.leaving }

// BusyLocked reports whether the tier stores anything.
func (l *Lane) BusyLocked() bool { return l.storing > 0 }

// DeferLocked notes a block that found the queue full: it is queued when there is room. Beyond a limit it is
// forgotten.
func (l *Lane) DeferLocked(id index.ID, seq uint64) {
	if l.deferred.len() < maxDeferred {
		l.deferred.push(deferred{id, seq})
	}
}

// undeferLocked moves blocks that found the queue full into it, as far as it has room now.
func (l *Lane) undeferLocked() {
	for l.deferred.len() > 0 {
		d := l.deferred.front()
		size, ok := l.o.Owner.DeferredLocked(d.id, d.seq)
		if ok && l.FullLocked(size) {
			return
		}
		l.deferred.pop()
		if ok {
			l.o.Owner.StoreLocked(d.id, false)
		}
	}
}

// Progress is how far the queues of a Lane have come.
type Progress struct {
	keyed    uint64
	deferred uint64
	missed   uint64
	settling bool // the queues may still get some of it
}

// BarrierLocked has fn called when every store that was queued has ended, or with block.ErrClosed by Close, and
// notes in p what may be queued yet because of what came before: more reports whether another barrier is needed
// after this one. The zero Progress begins. present: the stores that the tier misses while it is away do not count.
func (l *Lane) BarrierLocked(p *Progress, present bool, fn func(error)) (more bool) {
	first := *p == (Progress{})
	if first {
		p.keyed, p.settling = l.keyedIn, true
	}
	if p.settling {
		p.deferred = l.deferred.popped + uint64(l.deferred.len())
		p.missed = l.missed.blocks.popped + uint64(l.missed.blocks.len())
		p.settling = l.recorder == nil && l.keyedOut < p.keyed || // a rename has a block stored anew
			first && !present && l.stats.QueuedBlocks > 0 // they may be missed
	}
	l.undeferLocked()
	more = p.settling || l.deferred.popped < p.deferred
	if missed := l.missed.blocks.popped < p.missed && !present; missed && !more {
		l.missed.waiting = append(l.missed.waiting, fn)
		return true
	}
	l.stores.push(&Store{barrier: fn})
	l.wakeUp()
	return more
}

// QueuedLocked yields the stores that have not begun, in their order. It is valid until the queue changes.
func (l *Lane) QueuedLocked() iter.Seq[*Store] {
	return func(yield func(*Store) bool) {
		for _, s := range l.stores.rest() {
			if s.barrier == nil && !yield(s) {
				return
			}
		}
	}
}

// StoringLocked reports whether a block is being stored under a key.
func (l *Lane) StoringLocked(key block.Key) bool {
	_, ok := l.busy[key]
	return ok
}

// BegunLocked yields the stores that the tier does, in no order.
func (l *Lane) BegunLocked() iter.Seq[*Store] { return maps.Keys(l.begun) }

// JoinLocked adds a waiter to the store of a block that is queued or begun, and reports whether there is one.
// A queued one is moved to the front.
func (l *Lane) JoinLocked(id index.ID, seq uint64, force bool, done chan<- error) bool {
	for s := range l.begun {
		if s.is(id, seq) {
			s.Wait(done)
			return true
		}
	}
	queued := l.stores.rest()
	for i, s := range queued {
		if s.is(id, seq) {
			s.Wait(done)
			s.Force = s.Force || force
			copy(queued[1:i+1], queued[:i])
			queued[0] = s
			return true
		}
	}
	return false
}

// VoidLocked follows that a block is gone: its entry may become that of another one, so the stores of it that
// have begun are of none any more.
func (l *Lane) VoidLocked(id index.ID, seq uint64) {
	for s := range l.begun {
		if s.is(id, seq) {
			s.ID = 0
		}
	}
}

// RetargetLocked follows that a version of a block has another number: stores that are queued or begun are about that now.
func (l *Lane) RetargetLocked(id index.ID, seq, newSeq uint64) {
	move := func(s *Store) {
		if s.is(id, seq) {
			s.Seq = newSeq
		}
	}
	for _, s := range l.stores.rest() {
		move(s)
	}
	for s := range l.begun {
		move(s)
	}
}

// nextStoresLocked takes the stores of the next job from the queue, or a barrier, and returns what begins it.
func (l *Lane) nextStoresLocked() (begin func()) {
	if l.stores.len() == 0 {
		return nil
	}
	if fn := l.stores.front().barrier; fn != nil {
		if l.storing > 0 {
			return nil
		}
		l.stores.pop()
		return func() { fn(nil) }
	}
	if l.storing >= maxStoreJobs && (l.storing >= maxPackJobs || l.busyBytes >= l.packBytes) {
		return nil
	}
	list, invalid := l.takeStoresLocked()
	if len(list)+len(invalid) == 0 {
		return nil
	}
	return func() {
		for _, s := range invalid {
			s.tell(block.ErrNotFound)
		}
		if len(list) > 0 {
			l.beginStores(list)
		}
	}
}

// takeStoresLocked takes the stores of the next job from the queue, and those that
// have become pointless.
func (l *Lane) takeStoresLocked() (list, invalid []*Store) {
	var bytes int64
	for l.stores.len() > 0 && len(list) < storeJobKeys {
		s := l.stores.front()
		if s.barrier != nil || len(list) > 0 && bytes+s.Bytes > StoreJobBytes {
			break
		}
		key, ok := l.o.Owner.KeyLocked(s)
		if !ok {
			l.stores.pop()
			l.unqueueLocked(s)
			l.o.Owner.UnstoredLocked(s)
			invalid = append(invalid, s)
			continue
		}
		s.Key = key
		if _, busy := l.busy[key]; busy {
			break
		}
		l.stores.pop()
		l.busy[key] = struct{}{}
		l.begun[s] = struct{}{}
		l.busyBytes += s.Bytes
		bytes += s.Bytes
		list = append(list, s)
	}
	if len(list) > 0 {
		l.storing++
	}
	return list, invalid
}

// unqueueLocked takes s out of the accounts of the queue.
func (l *Lane) unqueueLocked(s *Store) {
	l.stats.QueuedBlocks--
	l.stats.QueuedBytes -= s.Bytes
	if s.Leaving {
		l.leaving -= s.Bytes
	}
}

// endLocked takes a store that has begun out of the accounts.
func (l *Lane) endLocked(s *Store) {
	delete(l.busy, s.Key)
	delete(l.begun, s)
	l.busyBytes -= s.Bytes
	l.unqueueLocked(s)
}

// beginStores opens the files of a job and gives it to the tier.
func (l *Lane) beginStores(list []*Store) {
	job := &driver.Job{ID: l.o.NextJob()}
	var begun, failed []*Store
	for _, s := range list {
		t, err := l.o.Owner.Transfer(s)
		if err != nil {
			failed = append(failed, s)
			continue
		}
		job.Blocks = append(job.Blocks, t)
		begun = append(begun, s)
	}
	l.giveUp(failed, len(begun) == 0)
	if len(begun) == 0 {
		return
	}
	job.Done = l.answered(job, func(r *driver.Result) { l.stored(job, begun, r) })
	j := StoreJob{ID: job.ID, Tier: l.o.Name, Keys: len(begun), Started: l.o.Now()}
	l.o.Lock.Lock()
	for _, s := range begun {
		j.Bytes += s.Bytes
		job.Force = job.Force || s.Force
	}
	l.storeJobs[job.ID] = j
	l.o.Lock.Unlock()
	l.o.Tier.Store(job)
}

// giveUp follows that the files of some stores of a job are gone. all: the job has no other.
func (l *Lane) giveUp(failed []*Store, all bool) {
	if len(failed) == 0 {
		return
	}
	l.o.Lock.Lock()
	for _, s := range failed {
		l.endLocked(s)
		l.o.Owner.UnstoredLocked(s)
	}
	if all {
		l.storing--
	}
	l.o.Lock.Unlock()
	for _, s := range failed {
		s.tell(block.ErrNotFound)
	}
	if all {
		l.wakeUp()
	}
}

// stored follows the end of a store job.
func (l *Lane) stored(job *driver.Job, list []*Store, r *driver.Result) {
	for i := range job.Blocks {
		job.Blocks[i].File.Close()
	}
	l.o.Lock.Lock()
	l.storing--
	l.stats.Stores.Observe(l.o.Now().Sub(l.storeJobs[job.ID].Started))
	delete(l.storeJobs, job.ID)
	for _, s := range list {
		l.endLocked(s)
	}
	errs, after := l.o.Owner.StoredLocked(list, r.Outcomes)
	l.missLocked(list, errs)
	l.o.Lock.Unlock()
	after()
	for i, s := range list {
		s.tell(errs[i])
	}
	l.wakeUp()
}
