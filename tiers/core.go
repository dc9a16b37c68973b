package tiers

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/pattern"
	"github.com/kvfs/kvfs/tiers/room"
)

// core is the part that the rooms of an Engine share: the rooms themselves, the fields that are constant after Open,
// and the one lock with the fields that it guards. Its methods are those that several rooms need.
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
	seed    maphash.Seed // for the hashes by which policies recognise a key

	ctx    context.Context // ends with the engine: for work that belongs to no single caller
	cancel context.CancelFunc
	wg     sync.WaitGroup

	tiers     []*secondary                  // constant after Open
	remote    *secondary                    // the one of tiers that is a Remote, or nil
	far       driver.Remote                 // the tier of remote, or nil
	lazy      uint16                        // bits of the tiers with CascadeOnEvict
	deadlines map[*room.Group]time.Duration // GroupOptions.OpenDeadline of the groups that have one
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
		orphans    map[*promotion]struct{} // under way, but their names are gone

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
	flagUncommitted uint16 = 1 << iota // being written: not yet visible to other processes
	flagTemp                           // its name looks temporary
	flagPinned                         // by the user, through user.kvfs.pinned
	flagSum                            // Sum is valid
	flagPolicy                         // is in its group's policy
	flagCounted                        // its charge counts as pinned
	flagLimbo                          // replaced, but still there for a process that just looked it up
	flagRefused                        // a secondary tier refused it: do not try again
	flagOnceSeen                       // not copied down because it was seen only once
	flagSynced                         // fsync has stored a version under its name
	flagTouched                        // is in opens.touched
	flagFetched                        // another node made this version
	flagPlain                          // its name is one of PlainPatterns
)

const (
	pageBytes   = 4096
	modeType    = 0o170000
	modeDir     = 0o040000
	modeRegular = 0o100000
)

// newCore makes a core with the root directory as its only entry, and no rooms.
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

// Events returns the log of events about blocks.
func (e *core) Events() *event.Log { return e.events }

func (e *core) now() int64 { return e.opts.Now().UnixNano() }

// nextSeqLocked returns the next commit number. It follows the clock, so a process
// that finds no files of an earlier process still has higher numbers.
func (e *core) nextSeqLocked() uint64 {
	e.mu.seq = max(e.mu.seq+1, uint64(e.now()))
	return e.mu.seq
}

// seqNowLocked returns a commit number of now. No later commit, here or elsewhere, has a lower
// number. No earlier commit that is known here has a higher one.
func (e *core) seqNowLocked() uint64 { return max(e.mu.seq, uint64(e.now())) }

// chargeOf returns the bytes that a file of size bytes costs: whole pages, as tmpfs counts.
func chargeOf(size int64) int64 { return (size + pageBytes - 1) &^ (pageBytes - 1) }

// checkLocked verifies the invariants of e.mu that are cheap enough for every Lock and Unlock.
func (e *core) checkLocked() {
	m := &e.mu
	m.room.Check()
	invariant.Check(m.blocks >= 0, "blocks %d < 0", m.blocks)
}

// pathHashLocked returns the hash by which policies and filters recognise a name.
func (e *core) pathHashLocked(id index.ID) uint64 {
	e.mu.scratch = e.mu.ix.AppendPath(e.mu.scratch[:0], id)
	return maphash.Bytes(e.seed, e.mu.scratch)
}
