package tiers

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/event"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/pattern"
	"github.com/kvfs/kvfs/tiers/room"
)

// core is what the rooms of an Engine share: the rooms themselves, what is constant after Open, and the one lock with
// what it guards. Its methods are what several rooms need of an entry.
type core struct {
	names     *names
	lookups   *lookups
	verdicts  *verdicts
	report    *report
	attrs     *attrs
	opens     *opens
	drafts    *drafts
	renames   *renames
	loads     *loads
	copies    *copies
	space     *space
	elsewhere *elsewhere
	lending   *lending

	opts    Options // constant after Open
	log     *zap.Logger
	primary driver.Primary
	events  *event.Log
	temp    pattern.Set
	plain   pattern.Set
	seed    maphash.Seed // of the hashes by which policies know a key again

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

	mu struct {
		invariant.Mutex
		closed bool
		ix     *index.Index
		room   *room.Room // the accounts

		files    map[index.ID]*File     // write sides
		waiting  map[nameKey][]index.ID // versions that wait to take a name
		formerly map[index.ID]nameKey   // names of replaced files to which kernels refer

		promotions map[index.ID]*promotion // under way
		orphans    map[*promotion]struct{} // likewise, but their names are gone

		blocks   int64 // committed files in memory
		hollow   int64 // committed files in secondary tiers only
		seq      uint64
		expiries index.Expiries
		counters Counters
		tally    tally
		scratch  []byte // for paths
	}
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

// newCore makes what the rooms share, with the root directory alone.
func newCore(opts Options) *core {
	e := &core{opts: opts, log: opts.Logger, primary: opts.Primary, events: event.New(), seed: maphash.MakeSeed()}
	e.temp, e.plain = pattern.New(opts.TempPatterns), pattern.New(opts.PlainPatterns)
	e.mu.ix = index.New()
	e.mu.files = map[index.ID]*File{}
	e.mu.waiting = map[nameKey][]index.ID{}
	e.mu.formerly = map[index.ID]nameKey{}
	e.mu.promotions = map[index.ID]*promotion{}
	e.mu.orphans = map[*promotion]struct{}{}
	now := e.now()
	root := e.mu.ix.At(index.Root)
	root.Mode, root.Mtime, root.Atime, root.Ctime = modeDir|opts.RootMode, now, now, now
	root.UID, root.GID = opts.RootUID, opts.RootGID
	return e
}

// Events returns the log of what happened to blocks.
func (e *core) Events() *event.Log { return e.events }

func (e *core) now() int64 { return e.opts.Now().UnixNano() }

// nextSeqLocked returns the next commit number. It follows the clock, so that a
// process that finds nothing of an earlier one still numbers higher.
func (e *core) nextSeqLocked() uint64 {
	e.mu.seq = max(e.mu.seq+1, uint64(e.now()))
	return e.mu.seq
}

// seqNowLocked is a number that no later commit here or elsewhere is below, nor any earlier
// one that is known here above.
func (e *core) seqNowLocked() uint64 { return max(e.mu.seq, uint64(e.now())) }

// chargeOf is what a file of that size costs: whole pages, as tmpfs counts.
func chargeOf(size int64) int64 { return (size + pageBytes - 1) &^ (pageBytes - 1) }

// checkLocked verifies the invariants of e.mu that are cheap enough to check at
// every Lock and Unlock.
func (e *core) checkLocked() {
	m := &e.mu
	m.room.Check()
	invariant.Check(m.blocks >= 0, "blocks %d < 0", m.blocks)
}

// pathHashLocked is the hash by which policies and filters know a name again.
func (e *core) pathHashLocked(id index.ID) uint64 {
	e.mu.scratch = e.mu.ix.AppendPath(e.mu.scratch[:0], id)
	return maphash.Bytes(e.seed, e.mu.scratch)
}
