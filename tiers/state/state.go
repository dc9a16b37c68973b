package state

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/pattern"
	"github.com/kvfs/kvfs/tiers/room"
)

// State is what the packages of an Engine share: the fields that are constant after Open, and the one lock with the fields
// that it guards. Its methods are those that several of them need.
type State struct {
	Recorder Recorder

	Opts     Options // constant after Open
	Log      *zap.Logger
	Primary  driver.Primary
	EventLog *event.Log
	Temp     pattern.Set
	Plain    pattern.Set

	Ctx    context.Context // ends with the engine: for work that belongs to no single caller
	Cancel context.CancelFunc
	Work   sync.WaitGroup

	Tiers     []*Secondary                  // constant after Open
	Remote    *Secondary                    // the one of tiers that is a Remote, or nil
	Far       driver.Remote                 // the tier of remote, or nil
	Asker     driver.Asker                  // the same tier if it is an Asker, else nil
	Finders   []*Secondary                  // those of tiers that are a driver.Finder
	Anew      uint16                        // bits of this node's tiers that are no driver.Recorder
	Lazy      uint16                        // bits of the tiers with CascadeOnEvict
	Deadlines map[*room.Group]time.Duration // GroupOptions.OpenDeadline of the groups that have one
	Jobs      atomic.Uint64

	Writers atomic.Int64 // len(Mu.Files)
	gones   sync.Pool    // of *Gone

	Mu struct {
		invariant.Mutex
		catalog.Catalog // the index and the accounts

		Closed bool

		Files map[index.ID]WriteSide

		Seq      uint64
		SeqFrom  string // the node whose version raised Seq above the clock; "" if this node did
		Counters Counters
		Tally    tally
		Outcomes *outcome.History
		Reuse    *usage
		Misses   misses
	}
}

// Modes, as Linux has them.
const (
	ModeType    = 0o170000 // the bits of a type in st_mode
	ModeDir     = 0o040000
	ModeRegular = 0o100000
)

// New makes a State with the root directory as its only entry.
func New(opts Options) *State {
	e := &State{Opts: opts, Log: opts.Logger, Primary: opts.Primary, EventLog: event.New()}
	e.Temp, e.Plain = pattern.New(opts.TempPatterns), pattern.New(opts.PlainPatterns)
	e.Mu.Files = map[index.ID]WriteSide{}
	now := e.Now()
	e.Mu.Catalog = catalog.New(e.Temp, e.Plain, catalog.Attrs{
		Mode: uint16(ModeDir | opts.RootMode), UID: opts.RootUID, GID: opts.RootGID, Mtime: now, Atime: now, Ctime: now,
	})
	e.Mu.Kernels, e.Mu.Follow = opts.Kernels, e.followLocked
	e.Mu.Outcomes = outcome.New(e.Mu.Seed, opts.Kernels, now)
	return e
}

// Now returns the time in nanoseconds since the epoch.
func (st *State) Now() int64 { return st.Opts.Now().UnixNano() }

// NextSeqLocked returns the next commit number. It follows the clock, so a process
// that finds no files of an earlier process still has higher numbers.
func (st *State) NextSeqLocked() uint64 {
	st.Mu.Seq = max(st.Mu.Seq+1, uint64(st.Now()))
	return st.Mu.Seq
}

// SeqNowLocked returns a commit number of now. No later commit, here or elsewhere, has a lower
// number. No earlier commit that is known here has a higher one.
func (st *State) SeqNowLocked() uint64 { return max(st.Mu.Seq, uint64(st.Now())) }

// CheckLocked verifies the invariants of State.Mu that are cheap enough for every Lock and Unlock.
func (st *State) CheckLocked() {
	m := &st.Mu
	m.Room.Check()
	blocks, nonresident := m.Blocks()
	invariant.Check(blocks >= 0 && nonresident >= 0, "blocks %d or nonresident %d < 0", blocks, nonresident)
}

// ApplyLocked makes a change of an entry, and everything in the catalog that follows from it.
func (st *State) ApplyLocked(e catalog.Edit) catalog.Change { return st.Mu.Apply(e) }

// CheckCountsLocked compares the counters with the entries, in builds with invariants. It is too slow for each Lock.
func (st *State) CheckCountsLocked() {
	if invariant.Enabled {
		resident, nonresident := st.Mu.Census()
		b, h := st.Mu.Blocks()
		invariant.Check(b == resident && h == nonresident, "blocks %d and nonresident %d, entries say %d and %d", b, h, resident, nonresident)
	}
}
