package tiers

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/room"
)

// Options configures an Engine. The zero value of each field is usable except
// where it says otherwise.
type Options struct {
	Primary       driver.Primary // required: tier 0
	CapacityBytes int64          // required: hard cap on what the primary tier holds
	HeadroomBytes int64          // how far the primary's file system exceeds CapacityBytes
	Policy        string         // eviction order: lru, arc, s3fifo. Empty means lru.

	HighWatermark float64 // share of capacity above which the evictor runs. Zero means 0.98.
	LowWatermark  float64 // share at which it stops. Zero means 0.95.

	Groups map[block.GroupID]GroupOptions

	// Secondaries are the tiers below memory, fastest first. The engine closes them.
	Secondaries []SecondaryOptions

	// OpenDeadline bounds how long an open waits for a block to come into memory: what is
	// predicted to take longer is a miss at once, and what turns out to, one then. Zero means
	// PromoteTimeout alone.
	OpenDeadline time.Duration

	PromoteOnLookup   bool          // begin to promote at a positive look-up, not only at open
	PromoteTimeout    time.Duration // longest that an open waits before it is a miss. Zero means 30 s.
	PromoteBatchKeys  int           // most blocks of one load job. Zero means 64.
	PromoteBatchBytes int64         // most bytes of one load job, but at least one block. Zero means 8 MiB.
	PromoteWindow     time.Duration // how long to wait for more blocks of a job. Zero: not at all.
	TierSummary       bool          // log one line a load job

	RootMode         uint32 // permission bits of the root directory. Zero means 0755.
	RootUID, RootGID uint32 // its owner

	WriteTimeout time.Duration // longest wait for space before ErrNoSpace. Zero means 5 s.
	LookupLease  time.Duration // no eviction for this long after a positive look-up. Zero means 30 s; negative none.
	TempPatterns []string      // names held back until renamed, as a nameMatcher takes them. Nil means DefaultTempPatterns.
	TempExpiry   time.Duration // abandoned temporary files go after this. Zero means 1 h.

	// RequestBytes is the size of the pieces in which a front cuts long writes: a
	// shorter first piece is the whole write. Zero means 1 MiB.
	RequestBytes int

	// PlainPatterns are names of files that are POSIX from the first byte, and never
	// cascaded, evicted or expired. Nil means DefaultPlainPatterns.
	PlainPatterns []string

	// Alive reports whether a process has not ended. Nil means that none has. It may read
	// /proc; no lock is held.
	Alive func(Process) bool
	// Closed reports whether a process has no descriptor to write a file by any more, as far as one can
	// see. Nil means that none can be seen. It may read /proc; no lock is held.
	Closed func(Process, index.ID) bool

	// HideElsewhere has ReadDir leave out entries that stand for what only other nodes
	// have: else those that have been looked up show, and the others do not.
	HideElsewhere bool
	// ListWait is the longest wait for others who list a directory: the kernel holds a lock of
	// the directory meanwhile, which who creates a file in it needs. Zero means 50 ms.
	ListWait time.Duration

	// Kernels: several kernels refer to entries, so that what one of them asked for is told
	// to all, by Invalidate; and absence is never Attr.Stable. The time of last access is not told,
	// nor that names have come into a directory, whose times change with that.
	Kernels bool

	// Invalidate is called when a name that the kernel may have cached went
	// away without the kernel's doing. It must not block; no lock is held.
	//
	// With Kernels it is also called when a name means no longer id, or nothing, because a
	// kernel asked for that; and with no parent and no name if the attributes of id have
	// changed, or its bytes in place, while all names stay as they are. by is the process for which a
	// kernel asked to change the name: that kernel knows, once it is answered. If it is answered with
	// an error, the call is repeated without by. by is zero where no kernel knows.
	Invalidate func(by Process, parent, id index.ID, name string)

	// Dropped is called after the file of a blob was removed and no handle of
	// ours uses it, so that what refers to it outside (a registered backing
	// file) can go. It must not block; no lock is held.
	Dropped func(driver.BlobID)

	// Freed is called when the file of a block was removed from memory, or truncated in place,
	// with its device and inode number, which no other file can have before it returns: who has
	// mapped or registered the file lets go of the pages now. It must not block; no lock is
	// held. Nil: nobody has.
	Freed func(dev, ino uint64)

	Now    func() time.Time // nil means time.Now
	Logger *zap.Logger      // nil means none
}

// GroupOptions configures one group.
type GroupOptions struct {
	Pinned     bool  // never evicted; rewritten in place
	QuotaBytes int64 // cap on the group's bytes. 0: none.
	BlockBytes int64 // size of its blocks. 0: learned from the blocks written.
	Strict     bool  // nothing but blocks of BlockBytes is committed. Not of a pinned group.

	OpenDeadline time.Duration // as Options.OpenDeadline, which holds where this is 0
}

// Engine is the store: names, blocks, their place in the tiers, and who may
// evict what. All methods may be called in parallel. See doc.go for the lock
// order and for a load and a store step by step.
type Engine struct {
	opts    Options // constant after Open
	log     *zap.Logger
	primary driver.Primary
	events  *EventLog
	temp    nameMatcher
	plain   nameMatcher
	seed    maphash.Seed // of the hashes by which policies know a key again

	wake   chan struct{}   // capacity 1: tells the evictor that the high watermark was passed
	ctx    context.Context // the engine's life: of work that belongs to no one caller
	cancel context.CancelFunc
	wg     sync.WaitGroup

	tiers     []*secondary                  // constant after Open
	remote    *secondary                    // the one of them whose tier is a Remote, or nil
	far       driver.Remote                 // that tier, or nil
	lazy      uint16                        // bits of the tiers with CascadeOnEvict
	deadlines map[*room.Group]time.Duration // GroupOptions.OpenDeadline, of groups with one
	jobs      atomic.Uint64

	writing atomic.Int64 // len(mu.files)

	implausible atomic.Uint64 // version numbers of others that cannot be

	guessed allowance // bytes that speculate reserved
	streams allowance // bytes lent from files of their own
	hints   allowance // calls of Hint under way

	listings listings // leaf lock of its own

	records [64]sync.Mutex // by id: orders writers of one record; taken before mu

	mu struct {
		invariant.Mutex
		closed bool
		ix     *index.Index
		room   *room.Room  // the accounts
		leases room.Leases // of requests

		files    map[index.ID]*File     // write sides
		waiting  map[nameKey][]index.ID // versions that wait to take a name
		formerly map[index.ID]nameKey   // names of replaced files to which kernels refer

		limbo limbo // replaced blocks that can still be opened

		promotions map[index.ID]*promotion // under way
		orphans    map[*promotion]struct{} // likewise, but their names are gone
		touched    []index.ID              // read since the tiers were told

		blocks   int64 // committed files in memory
		hollow   int64 // committed files in secondary tiers only
		seq      uint64
		expiries expiryHeap
		outdated []goneName // found by a look-up to mean another entry, and not yet told
		fates    *fate.Memory
		strays   []index.ID // entries made for what others have, which nobody may refer to
		counters Counters
		tally    tally
		dirFiles int64  // directories with a file of their own
		scratch  []byte // for paths
	}
}

// Counters are totals since Open.
type Counters struct {
	Stored, StoredBytes     uint64 // commits
	Opened                  uint64 // opens for reading
	Evicted, EvictedBytes   uint64
	Expired                 uint64 // removed by their time to live, abandoned temporary files included
	Removed                 uint64 // by unlink, or replaced
	Adopted, AdoptedBytes   uint64
	AdoptDropped            uint64 // found at start but modified after commit, or superseded
	NoSpace                 uint64 // writes refused
	Overruns                uint64 // files that grew past what was reserved for them
	Poisoned                uint64 // commits refused because a write had failed
	KilledWriters           uint64 // commits refused because the writer died of a signal
	LookupMisses, LookupHit uint64
	Superseded              uint64 // removed because somebody elsewhere removed or replaced them
	Implausible             uint64 // version numbers of other nodes that were ignored, because they are too far in the future
	PromoteNoRoom           uint64 // promotions given up because memory was full of what cannot be evicted
	FullOfOpen              uint64 // opens and writes that had to wait because memory was full of what is open, pinned or temporary
	FullOfLeased            uint64 // likewise of blocks within the lease of a look-up, of which memory has the only copy
	FileSystemFull          uint64 // times that the file system behind memory had no room where the accounts had
	Lost                    uint64 // blocks evicted from memory although no other tier had them
	DeadlinePredicted       uint64 // opens that were a miss at once, because the block would have come after the deadline
	DeadlineExceeded        uint64 // opens that were a miss because it had not come by then
}

// nameKey is one name in one directory.
type nameKey struct {
	parent index.ID
	name   string
}

// Flags of an index entry.
const (
	flagUncommitted uint16 = 1 << iota // being written: not yet visible to others
	flagTemp                           // its name looks temporary
	flagPinned                         // by the user, through user.kvfs.pinned
	flagSum                            // Sum is valid
	flagPolicy                         // is in its group's policy
	flagCounted                        // its charge counts as pinned
	flagLimbo                          // replaced, but still there for who just looked it up
	flagRefused                        // a secondary tier did not take it: not to be tried again
	flagOnceSeen                       // not copied down because it was seen only once
	flagSynced                         // fsync stored a version of it under its name
	flagTouched                        // is in touched
	flagFetched                        // others have made this version
	flagPlain                          // its name is one of PlainPatterns
)

const (
	pageBytes   = 4096
	modeType    = 0o170000
	modeDir     = 0o040000
	modeRegular = 0o100000
)

// Open makes an engine over opts.Primary and adopts what an earlier process
// left there. It fails with all violations of opts at once, or with the
// primary's error.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	e := &Engine{opts: opts, log: opts.Logger, primary: opts.Primary, events: newEventLog(), wake: make(chan struct{}, 1), seed: maphash.MakeSeed()}
	e.temp, e.plain = newNameMatcher(opts.TempPatterns), newNameMatcher(opts.PlainPatterns)
	if err := e.openRoom(); err != nil {
		return nil, err
	}
	e.mu.ix = index.New()
	e.mu.files = map[index.ID]*File{}
	e.mu.waiting = map[nameKey][]index.ID{}
	e.mu.formerly = map[index.ID]nameKey{}
	e.mu.promotions = map[index.ID]*promotion{}
	e.mu.orphans = map[*promotion]struct{}{}
	e.mu.fates = fate.New(e.seed, opts.Kernels, e.now())
	now := e.now()
	root := e.mu.ix.At(index.Root)
	root.Mode, root.Mtime, root.Atime, root.Ctime = modeDir|opts.RootMode, now, now, now
	root.UID, root.GID = opts.RootUID, opts.RootGID
	e.addSecondaries()
	if err := e.adopt(); err != nil {
		return nil, err
	}
	if err := e.enumerate(); err != nil {
		return nil, err
	}
	e.shrinkAdopted()
	if _, err := e.look(); err != nil {
		return nil, err
	}
	e.mu.SetCheck(e.checkLocked)
	ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.ctx = ctx
	for _, s := range e.tiers {
		e.wg.Go(func() { s.Run(ctx) }) // likewise
	}
	e.wg.Go(func() { e.runEvictor(ctx) }) // ends when Close cancels ctx
	e.wg.Go(func() { e.runExpiry(ctx) })  // likewise
	return e, nil
}

// fill sets defaults, then reports every violation.
func (o *Options) fill() error {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.WriteTimeout, 5*time.Second)
	def(&o.LookupLease, 30*time.Second)
	def(&o.TempExpiry, time.Hour)
	def(&o.PromoteTimeout, 30*time.Second)
	def(&o.ListWait, 50*time.Millisecond)
	if o.PromoteBatchKeys == 0 {
		o.PromoteBatchKeys = 64
	}
	if o.PromoteBatchBytes == 0 {
		o.PromoteBatchBytes = 8 << 20
	}
	if o.HighWatermark == 0 {
		o.HighWatermark = 0.98
	}
	if o.LowWatermark == 0 {
		o.LowWatermark = min(0.95, o.HighWatermark)
	}
	if o.RootMode == 0 {
		o.RootMode = 0o755
	}
	if o.RequestBytes == 0 {
		o.RequestBytes = 1 << 20
	}
	if o.Policy == "" {
		o.Policy = "lru"
	}
	if o.TempPatterns == nil {
		o.TempPatterns = DefaultTempPatterns
	}
	if o.PlainPatterns == nil {
		o.PlainPatterns = DefaultPlainPatterns
	}
	if o.Alive == nil {
		o.Alive = func(Process) bool { return true }
	}
	if o.Closed == nil {
		o.Closed = func(Process, index.ID) bool { return false }
	}
	if o.Invalidate == nil {
		o.Invalidate = func(Process, index.ID, index.ID, string) {}
	}
	if o.Dropped == nil {
		o.Dropped = func(driver.BlobID) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	var errs []error
	if o.Primary == nil {
		errs = append(errs, errors.New("primary tier missing"))
	}
	if o.CapacityBytes < pageBytes {
		errs = append(errs, fmt.Errorf("capacity of %d bytes is below one block of %d", o.CapacityBytes, pageBytes))
	}
	if o.HighWatermark <= 0 || o.HighWatermark > 1 || o.LowWatermark <= 0 || o.LowWatermark > o.HighWatermark {
		errs = append(errs, fmt.Errorf("watermarks low %v, high %v: want 0 < low <= high <= 1", o.LowWatermark, o.HighWatermark))
	}
	return errors.Join(append(errs, o.checkSecondaries()...)...)
}

// Close stops the background work and closes the tiers. The primary tier keeps the
// committed blocks for a later process if keep is set. The caller has closed all
// files before, and called Drain if what is not yet copied down matters. ctx bounds
// the wait for secondary tiers.
func (e *Engine) Close(ctx context.Context, keep bool) error {
	e.mu.Lock()
	if e.mu.closed {
		e.mu.Unlock()
		return nil
	}
	e.mu.closed = true
	for _, s := range e.tiers {
		s.StopLocked()
	}
	files := make([]*File, 0, len(e.mu.files))
	for _, f := range e.mu.files {
		files = append(files, f)
	}
	e.mu.Unlock()
	e.cancel()
	e.wg.Wait()
	err := e.closeTiers(ctx)
	for _, f := range files {
		f.closeFile()
	}
	e.events.close()
	return errors.Join(err, e.primary.Close(keep))
}

// Events returns the log of what happened to blocks.
func (e *Engine) Events() *EventLog { return e.events }

func (e *Engine) now() int64 { return e.opts.Now().UnixNano() }

// nextSeqLocked returns the next commit number. It follows the clock, so that a
// process that finds nothing of an earlier one still numbers higher.
func (e *Engine) nextSeqLocked() uint64 {
	e.mu.seq = max(e.mu.seq+1, uint64(e.now()))
	return e.mu.seq
}

// seqNowLocked is a number that no later commit here or elsewhere is below, nor any earlier
// one that is known here above.
func (e *Engine) seqNowLocked() uint64 { return max(e.mu.seq, uint64(e.now())) }

// chargeOf is what a file of that size costs: whole pages, as tmpfs counts.
func chargeOf(size int64) int64 { return (size + pageBytes - 1) &^ (pageBytes - 1) }

// checkLocked verifies the invariants of e.mu that are cheap enough to check at
// every Lock and Unlock.
func (e *Engine) checkLocked() {
	m := &e.mu
	m.room.Check()
	invariant.Check(m.blocks >= 0, "blocks %d < 0", m.blocks)
}
