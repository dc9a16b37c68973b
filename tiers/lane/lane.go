package lane

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// Limits of the traffic with one tier.
const (
	maxStoreJobs = 4  // under way at a time
	storeJobKeys = 32 // a job
	maxLoadJobs  = 64

	maxPackJobs = 32 // maxStoreJobs of a driver.Packer
	// PackFiles is how many files are open for the stores to a driver.Packer.
	PackFiles = maxPackJobs * storeJobKeys

	// StoreJobBytes bounds a store job, which has at least one block.
	StoreJobBytes = 8 << 20

	// maxDeferred bounds the blocks that found the queue full, at 16 bytes each. What
	// exceeds it is copied when it is to be evicted, or fsynced.
	maxDeferred = 1 << 20
)

// Options describes a Lane. All fields but CatchUpRate, SecondHit, Window and Predict are required.
type Options struct {
	Name        string
	Tier        driver.Tier
	Bit         uint16 // of the tier in index.Entry.Tiers
	QueueBytes  int64  // bounds the blocks that wait to be copied; what exceeds it is deferred
	CatchUpRate int64  // bytes a second of the blocks that the tier missed while it was away; 0: no bound
	SecondHit   bool   // see AdmitLocked

	BatchKeys  int           // most blocks of one load job
	BatchBytes int64         // most bytes of one, but at least one block
	Window     time.Duration // how long to wait for more blocks of a load job. Zero: not at all

	Predict *Predictor // what is known of the tier's speed. Nil: nothing

	Lock    sync.Locker // of the Owner
	Owner   Owner
	NextJob func() driver.JobID // it must not take Lock
	Now     func() time.Time    // likewise
	Logger  *zap.Logger
}

// Owner is what a Lane asks of the engine: one for each Lane. Methods that end in Locked are called with
// Options.Lock held and take no other; the others are called without any lock.
type Owner interface {
	// KeyLocked returns the present key of the block of s. False: the block is gone, has another version, or
	// may not be copied now.
	KeyLocked(s *Store) (key block.Key, ok bool)

	// DeferredLocked returns the size of a block that was deferred. False: there is no reason any more to copy it.
	DeferredLocked(id index.ID, seq uint64) (bytes int64, ok bool)

	// StoreLocked has a block copied that was deferred, by PushLocked. again is Store.Again.
	StoreLocked(id index.ID, again bool)

	// UnstoredLocked follows that s came to nothing before the tier was asked. s is in no queue any more.
	UnstoredLocked(s *Store)

	// StoredLocked follows the end of some stores, which are in no queue any more, and returns what each came
	// to. after is called when the lock is released, before those who wait for the stores are told.
	StoredLocked(ended []*Store, outcomes []driver.Outcome) (errs []error, after func())

	// DirsLocked returns what is kept of the directories above a block; nil if it is gone.
	DirsLocked(id index.ID) []driver.DirAttrs

	// Transfer opens the file of a block that is to be stored under s.Key. It fails with block.ErrNotFound where
	// KeyLocked would say no by now.
	Transfer(s *Store) (driver.Transfer, error)

	// Restore has a block stored under its new name, because the tier cannot rename, or has lost the block.
	Restore(u Update)

	// Loaded follows the end of a load job, after the Loaders have been told.
	Loaded(b *Batch)
}

// Lane is the traffic with one tier. Make one with New; it ends with Close.
type Lane struct {
	o         Options
	recorder  driver.Recorder // nil without the ability
	packBytes int64           // driver.Packer.PackBytes; 0 without the ability
	wake      chan struct{}   // capacity 1: there may be something to begin

	// Guarded by Options.Lock.
	stopped   bool // by StopLocked
	keyed     fifo[keyedOp]
	stores    fifo[*Store]
	deferred  fifo[deferred]
	missed    missed
	begun     map[*Store]struct{}    // stores that the tier does
	busy      map[block.Key]struct{} // their keys
	busyBytes int64                  // their bytes
	storing   int                    // store jobs under way
	leaving   int64                  // bytes of the stores with Leaving, queued or begun
	seen      *seenFilter            // nil unless SecondHit
	stats     Stats

	pending      []*Load // not yet under way, oldest first
	again        []*Load // to be asked for again when keyed is empty
	loading      int     // load jobs under way
	pendingBytes int64   // of pending
	loadingBytes int64   // of the load jobs under way
	jobs         map[driver.JobID]*LoadJob
	storeJobs    map[driver.JobID]StoreJob
	predict      *Predictor
	busySince    time.Time // when loads were under way for the first time since none was

	changing
	keyedIn, keyedOut uint64 // removals and updates that were queued, and that are done
}

// New makes a Lane with empty queues. Run empties them.
func New(o Options) *Lane {
	l := &Lane{
		o: o, wake: make(chan struct{}, 1), begun: map[*Store]struct{}{}, busy: map[block.Key]struct{}{},
		changing: changing{naming: map[block.Key]int{}}, jobs: map[driver.JobID]*LoadJob{}, storeJobs: map[driver.JobID]StoreJob{},
	}
	if l.predict = o.Predict; l.predict == nil {
		l.predict = &Predictor{}
	}
	l.recorder, _ = o.Tier.(driver.Recorder)
	if p, ok := o.Tier.(driver.Packer); ok {
		l.packBytes = p.PackBytes()
	}
	if _, ok := o.Tier.(driver.Finder); ok {
		l.above = map[string]int{}
	}
	l.stats.Name, l.stats.QueueLimitBytes = o.Name, o.QueueBytes
	if o.SecondHit {
		l.seen = newSeenFilter()
	}
	return l
}

// Run hands the queues over to the tier until ctx ends.
func (l *Lane) Run(ctx context.Context) {
	for {
		for l.dispatch() {
			if ctx.Err() != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
	}
}

func (l *Lane) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// dispatch takes the next piece of work from the queues and begins it. False: there is nothing that can begin
// now.
func (l *Lane) dispatch() bool {
	l.o.Lock.Lock()
	begin := l.nextLocked()
	l.o.Lock.Unlock()
	if begin == nil {
		return false
	}
	begin()
	return true
}

// nextLocked takes the next piece of work from the queues and returns what begins it, without the lock. Nil:
// there is nothing that can begin now.
func (l *Lane) nextLocked() (begin func()) {
	if l.expandKeyedLocked() {
		return l.nextKeyedLocked()
	}
	if again := l.again; len(again) > 0 {
		l.again = nil
		return func() {
			for _, ld := range again {
				ld.For.Again()
			}
		}
	}
	l.retryLocked()
	l.undeferLocked()
	return l.nextStoresLocked()
}

// StopLocked stops loads: no more are begun.
func (l *Lane) StopLocked() { l.stopped = true }

// TurnAway ends with block.ErrClosed what waits and has not begun, but for removals and updates. Run must have
// ended, and StopLocked been called.
func (l *Lane) TurnAway() {
	l.o.Lock.Lock()
	if invariant.Enabled {
		err := l.AuditLocked()
		invariant.Check(err == nil, "%v", err)
	}
	loads := append(l.again, l.pending...)
	l.again, l.pending, l.pendingBytes = nil, nil, 0
	var stores []*Store
	if l.missed.timer != nil {
		l.missed.timer.Stop()
	}
	l.wakeWaitingLocked()
	for l.stores.len() > 0 {
		s := l.stores.pop()
		if stores = append(stores, s); s.barrier == nil {
			l.unqueueLocked(s)
		}
	}
	l.o.Lock.Unlock()
	for _, ld := range loads {
		ld.For.Closed()
	}
	for _, s := range stores {
		if s.barrier != nil {
			s.barrier(block.ErrClosed)
		}
		s.tell(block.ErrClosed)
	}
}

// Close does the removals and updates that are left, so that they are not forgotten, and closes the tier, as
// long as ctx. TurnAway comes first.
func (l *Lane) Close(ctx context.Context) error {
	for l.dispatchKeyed(ctx) {
	}
	return l.o.Tier.Close(ctx)
}
