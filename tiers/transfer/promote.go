package transfer

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// Transfer moves blocks between memory and the tiers below it: promotions, copies, durability. All methods may be called in
// parallel.
type Transfer struct {
	*state.State
	names  *names.Names
	memory *memory.Memory

	hints state.Allowance // calls of Hint under way

	// Guarded by State.Mu.
	promotions map[index.ID]*promotion // under way
	orphans    map[*promotion]struct{} // under way, but their names are gone
	givenUp    uint64                  // copies that tiers gave up because they refused a name or attributes
}

// New returns a Transfer without tiers: AddSecondaries follows.
func New(st *state.State, nm *names.Names, mem *memory.Memory) *Transfer {
	return &Transfer{State: st, names: nm, memory: mem, promotions: map[index.ID]*promotion{}, orphans: map[*promotion]struct{}{}}
}

// promotion brings one nonresident block into memory. An entry has one promotion at most, however many callers wait for
// it. The promotion belongs to the engine, and goes on when those callers leave.
type promotion struct {
	lane.Load // Key: as the tier was asked; Copy: asked for by Take

	e  *Transfer
	id index.ID

	// Guarded by State.Mu.
	seq     uint64           // changes with a rename
	tier    *state.Secondary // the tier that is asked
	tried   uint16           // tiers that have failed, as bits
	asked   int              // how often that tier was asked
	waiters int              // each gets one of the block's Opens if it succeeds
	own     bool             // no waiter would have the block from other nodes
	away    chan struct{}    // closed when other nodes are asked
	later   []laterOpen      // the waiters that are called rather than woken

	aside func(o *driver.Outcome) // constant; not nil: there is no entry yet, and aside carries the loaded block on

	// Owned by the goroutine that carries the promotion along.
	bill   room.Bill // who pays charge
	charge int64
	blob   driver.BlobID

	finished bool          // guarded by State.Mu: waiters have their Opens
	done     chan struct{} // closed after err is set
	err      error
}

// laterOpen is a waiter that is called.
type laterOpen struct {
	then     func(file *os.File, err error) // file is the block's, open until then returns
	until    int64
	deadline bool // until is an open deadline, not PromoteTimeout
}

// Want says how a caller wants a nonresident block.
type Want struct {
	Waits    state.Waiter
	Deadline time.Duration // of the caller, beside PromoteTimeout; 0: none
	Hint     bool          // begin, and do not wait
	// Own: take the block only from this node's tiers. That is for another node: this one must not ask others, which may be
	// waiting for it.
	Own bool
}

// Promote has a nonresident block brought into memory and waits until it is there, for PromoteTimeout at most. On success the
// caller has one of the block's Opens, which keeps the block there and is given back with CloseRead.
//
// It fails with ErrPending (Hint); ErrNotFound (no tier could give the block, or not in time, or memory is full of
// blocks that cannot be evicted; Own: only other nodes have it); ErrStale (the name is gone); or ctx's error.
func (tr *Transfer) Promote(ctx context.Context, id index.ID, w Want) error {
	tr.Mu.Lock()
	p, first := tr.promotionLocked(id, w.Own)
	switch {
	case p == nil:
		tr.Mu.Unlock()
		return state.ErrStale
	case w.Own && p.tier == tr.Remote, w.Hint && len(tr.promotions) > maxHints:
		if first {
			delete(tr.promotions, id)
		}
		tr.Mu.Unlock()
		if w.Hint {
			return block.ErrPending
		}
		return block.ErrNotFound
	case w.Hint:
		if first {
			tr.Work.Go(func() { tr.beginPromotion(tr.Ctx, p) }) // ends with the engine's context at the latest
		}
		tr.Mu.Unlock()
		return block.ErrPending
	}
	p.waiters++
	var away <-chan struct{}
	if w.Own {
		away = p.away
	} else {
		p.tier.HastenLocked(&p.Load)
	}
	tr.Mu.Unlock()
	state.Announce(w.Waits)
	if first {
		tr.startPromotion(p)
	}
	return tr.awaitPromotion(ctx, p, away, cmp.Or(w.Deadline, state.NoDeadline))
}

// promotionLocked returns the promotion of a nonresident block. If there is none it makes one, and the caller sees to its
// start. own says that the caller would not have the block from other nodes. The result is nil if the block is not
// nonresident.
func (tr *Transfer) promotionLocked(id index.ID, own bool) (p *promotion, first bool) {
	en := tr.Mu.Ix.At(id)
	if !tr.NonresidentLocked(id, en) || tr.Mu.Closed {
		return nil, false
	}
	if p = tr.promotions[id]; p != nil {
		p.own = p.own && own
		return p, false
	}
	p = &promotion{
		e: tr, id: id, seq: en.Seq(), own: own && tr.OwnTiers(en) != 0, away: make(chan struct{}), done: make(chan struct{}),
		bill: tr.Mu.Room.Bill(en.Group(), en.Accounts()), // what is pinned of it counts already
	}
	p.Load = lane.Load{Size: en.Size(), Sum: block.Checksum{Sum: en.Sum(), Valid: en.HasSum()}, For: p}
	tr.promotions[id] = p
	tr.chooseLocked(p, en)
	return p, true
}

// PromoteLater is promote for a caller that does not wait, unless it is spare: then a tier may keep it while it loads the
// block. It calls then when the block is in memory or cannot be had, from any goroutine, possibly before PromoteLater
// returns. then must not block. PromoteLater gives up after deadline.
func (tr *Transfer) PromoteLater(id index.ID, deadline time.Duration, spare bool, then func(file *os.File, err error)) {
	tr.Mu.Lock()
	p, first := tr.promotionLocked(id, false)
	if p == nil {
		tr.Mu.Unlock()
		then(nil, state.ErrStale)
		return
	}
	p.waiters++
	p.tier.HastenLocked(&p.Load)
	until := tr.Now() + int64(min(deadline, tr.Opts.PromoteTimeout))
	p.later = append(p.later, laterOpen{then, until, deadline < tr.Opts.PromoteTimeout})
	if first {
		p.Spare = spare && p.Size <= spareBytes && deadline >= tr.Opts.PromoteTimeout
	}
	tr.Mu.Unlock()
	if first {
		tr.startPromotion(p)
	}
	if deadline < tr.Opts.PromoteTimeout {
		time.AfterFunc(deadline, func() { tr.turnAway([]*promotion{p}, until) }) // whatever the clock of now says
	}
}

// spareBytes bounds the blocks whose loads keep their callers. A larger one takes so long that a wake-up matters little.
const spareBytes = 1 << 20

// startPromotion begins a promotion without waiting for room.
func (tr *Transfer) startPromotion(p *promotion) {
	if tr.tryRoomForPromotion(p) == nil {
		tr.fillPromotion(p)
		return
	}
	tr.awaitRoom(p)
}

// awaitRoom has a promotion that found no room wait for it, unless the engine is closed, which has waited for its work then.
func (tr *Transfer) awaitRoom(p *promotion) {
	tr.Mu.Lock()
	closed := tr.Mu.Closed
	if !closed {
		tr.Work.Go(func() { tr.beginPromotion(tr.Ctx, p) }) // ends with the engine's context at the latest
	}
	tr.Mu.Unlock()
	if closed {
		tr.failPromotion(p, block.ErrClosed)
	}
}

// startPromotions is startPromotion for several promotions at a time, so that a tier gets them in few jobs.
func (tr *Transfer) startPromotions(list []*promotion) {
	ready := list[:0]
	for _, p := range list {
		if tr.tryRoomForPromotion(p) != nil {
			tr.awaitRoom(p)
			continue
		}
		if tr.makeFile(p) {
			ready = append(ready, p)
		}
	}
	for _, s := range tr.queueLoads(ready) {
		s.Flush()
	}
}

// maxHints bounds the promotions for which no caller waits.
const maxHints = 256

// chooseLocked picks the tier to ask next. It returns false if no tier is left.
func (tr *Transfer) chooseLocked(p *promotion, en *index.Entry) bool {
	left := en.Tiers() &^ p.tried
	if own := left &^ tr.RemoteBit(); own != 0 || p.own {
		left = own // other nodes last
	}
	if left == 0 {
		return false
	}
	p.tier = tr.Tiers[bits.TrailingZeros16(left)]
	if p.tier == tr.Remote {
		close(p.away) // once: no tier is left then
	}
	p.Key = tr.KeyLocked(p.id)
	p.asked = 0
	return true
}

// beginPromotion makes room and a file for the block, and asks the tier for it.
func (tr *Transfer) beginPromotion(ctx context.Context, p *promotion) {
	if err := tr.roomForPromotion(ctx, p); err != nil {
		tr.noRoom(p, err)
		return
	}
	tr.fillPromotion(p)
}

func (tr *Transfer) noRoom(p *promotion, err error) {
	tr.Mu.Lock()
	tr.Mu.Counters.PromoteNoRoom++
	tr.Mu.Unlock()
	tr.failPromotion(p, err)
}

// fillPromotion makes the file of a promotion that has room, and asks the tier for the block.
func (tr *Transfer) fillPromotion(p *promotion) {
	if tr.makeFile(p) {
		tr.requestLoad(p)
	}
}

// makeFile makes the file of a promotion that has room. It returns false if the promotion has failed.
func (tr *Transfer) makeFile(p *promotion) bool {
	err := tr.memory.AtOnce(func() (err error) {
		p.blob, p.File, err = tr.Primary.Create()
		return err
	})
	if err != nil {
		tr.noRoom(p, err)
	}
	return err == nil
}

// roomForPromotion reserves memory for the block. Like a writer it waits for pins to go, for WriteTimeout and
// PromoteTimeout at most. It evicts no block that is leased or has no copy yet: a miss is better.
func (tr *Transfer) roomForPromotion(ctx context.Context, p *promotion) error {
	deadline := tr.Opts.Now().Add(min(tr.Opts.WriteTimeout, tr.Opts.PromoteTimeout))
	var moves uint64 // at the beginning of the wait
	for waited := false; ; waited = true {
		left := deadline.Sub(tr.Opts.Now())
		short := tr.tryRoomForPromotion(p)
		switch {
		case short == nil:
			return nil
		case short.hopeless != nil:
			return &block.Error{Op: "promote", Tier: "memory", Key: p.Key, Err: short.hopeless}
		case left <= 0:
			if waited && tr.Opts.PromoteTimeout >= tr.Opts.WriteTimeout {
				tr.memory.Waited(moves)
			}
			fallthrough
		case short.stalled:
			return &block.Error{Op: "promote", Tier: "memory", Key: p.Key, Err: block.ErrNoSpace}
		}
		if !waited {
			moves = short.moves
			tr.memory.Full(catalog.ChargeOf(p.Size), short.until)
		}
		left = min(left, short.left)
		if short.until > 0 {
			left = min(left, time.Duration(short.until-tr.Now())+time.Millisecond)
		}
		if err := state.WaitSpace(ctx, short.space, left); err != nil {
			return err
		}
	}
}

// shortage says when another attempt to reserve memory is worthwhile.
type shortage struct {
	space    <-chan struct{}
	until    int64         // when a lease ends; 0: none does
	left     time.Duration // the longest wait
	stalled  bool          // a wait is in vain
	moves    uint64        // see Memory.MovesLocked
	hopeless error         // not nil: no attempt is worthwhile
}

// tryRoomForPromotion reserves memory for the block if that takes no waiting, and returns nil then.
func (tr *Transfer) tryRoomForPromotion(p *promotion) *shortage {
	n := catalog.ChargeOf(p.Size)
	var g state.Gone
	tr.memory.Gauge(n, false)
	tr.Mu.Lock()
	short := &shortage{space: tr.Mu.Room.Space(), left: tr.Mu.Room.Wait(tr.Opts.WriteTimeout), hopeless: tr.Mu.Room.Hopeless(p.bill, 0, n)}
	ok := false
	if short.hopeless == nil {
		ok, short.until = tr.memory.RoomLocked(p.bill, n, false, &g)
	}
	if ok {
		p.charge = n
		tr.Mu.Room.Charge(p.bill, n, true)
	}
	if !ok {
		short.stalled, short.moves = tr.memory.StalledLocked(), tr.memory.MovesLocked()
	}
	high := ok && tr.Mu.Room.High(0)
	tr.Mu.Unlock()
	tr.Finish(&g)
	if high {
		tr.memory.WakeEvictor()
	}
	if ok {
		return nil
	}
	return short
}

// finishPromotion enters a loaded block in memory, unless the name means something else by now.
func (tr *Transfer) finishPromotion(s *state.Secondary, p *promotion, o *driver.Outcome) {
	later, err := []laterOpen(nil), errChanged
	for err == errChanged {
		// Adopt compares the file's time with the record's.
		mtime := tr.promotedMtime(p)
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
		if err = os.NewSyscallError("futimens", state.Futimens(int(p.File.Fd()), ts)); err == nil {
			later, err = tr.enterPromoted(s, p, o, mtime)
		}
	}
	if err != nil {
		tr.failPromotion(p, err)
		return
	}
	close(p.done)
	for _, l := range later {
		l.then(p.File, nil)
	}
	if err := tr.Recorder.WriteRecord(p.id, p.File); err != nil {
		tr.Log.Warn("record of a promoted block", zap.Stringer("key", p.Key), zap.Error(err))
	}
	tr.names.Forget(p.id, 1)
	p.File.Close()
}

// errChanged says that a block got another time while it was being entered.
var errChanged = errors.New("the file has changed")

// promotedMtime returns the modification time that the entry of a promotion has now, in nanoseconds.
func (tr *Transfer) promotedMtime(p *promotion) int64 {
	tr.Mu.Lock()
	defer tr.Mu.Unlock()
	if en := tr.promotedEntryLocked(p); en != nil {
		return en.Mtime()
	}
	return 0
}

// enterPromoted enters a loaded block, whose file has the time mtime, in memory, with one reference by the caller.
// It returns the waiters to call. It fails with errChanged if the entry has another time by now, and with ErrStale if
// the name means something else.
func (tr *Transfer) enterPromoted(s *state.Secondary, p *promotion, o *driver.Outcome, mtime int64) ([]laterOpen, error) {
	tr.Mu.Lock()
	defer tr.Mu.Unlock()
	en := tr.promotedEntryLocked(p)
	if en != nil && en.Mtime() != mtime {
		return nil, errChanged
	}
	s.StatsLocked().Promoted++
	s.StatsLocked().PromotedBytes += uint64(p.Size)
	if en == nil {
		return nil, state.ErrStale
	}
	tr.Mu.Room.Charge(p.bill, -p.charge, true)
	// The reference keeps the entry until the record is written.
	tr.ApplyLocked(catalog.Arrived{ID: p.id, Blob: uint64(p.blob), Sum: o.Sum, Now: tr.Now(), N: uint32(p.waiters)})
	tr.names.OwnDirsLocked(p.id)
	delete(tr.promotions, p.id)
	p.finished = true
	return p.later, nil
}

// promotedEntryLocked returns the entry of a promotion if it still stands for the block that the promotion was begun
// for, else nil.
func (tr *Transfer) promotedEntryLocked(p *promotion) *index.Entry {
	if !tr.Mu.Ix.Valid(p.id) || tr.promotions[p.id] != p {
		return nil
	}
	en := tr.Mu.Ix.At(p.id)
	if en.Seq() != p.seq || en.InMemory() || tr.Mu.Files[p.id] != nil || !tr.Mu.Ix.Linked(p.id) {
		return nil
	}
	return en
}

// Again implements lane.Loader. It asks the same tier once more, now that the queued renames have been done.
func (p *promotion) Again() {
	e := p.e
	e.Mu.Lock()
	en := e.promotedEntryLocked(p)
	if en != nil && p.tier.KeyedLocked() { // another rename meanwhile
		p.tier.AgainLocked(&p.Load)
		e.Mu.Unlock()
		return
	}
	if en != nil {
		p.Key = e.KeyLocked(p.id)
	}
	e.Mu.Unlock()
	if en == nil {
		e.failPromotion(p, state.ErrStale)
		return
	}
	e.requestLoad(p)
}

// Closed implements lane.Loader.
func (p *promotion) Closed() { p.e.failPromotion(p, block.ErrClosed) }

// Loaded implements lane.Loader.
func (p *promotion) Loaded(o *driver.Outcome) {
	switch {
	case p.aside != nil:
		p.aside(o)
	case o.Status == driver.Loaded:
		p.e.learnAttrs(p, o.Attrs)
		p.e.finishPromotion(p.tier, p, o)
	default:
		p.e.retryPromotion(p.tier, p, o)
	}
}

// requestLoad asks the tier of a promotion for its block, along with the other blocks in the tier's queue.
func (tr *Transfer) requestLoad(p *promotion) {
	for _, s := range tr.queueLoads([]*promotion{p}) {
		s.Ask()
	}
}

// queueLoads puts promotions into the queues of their tiers, and returns these tiers.
func (tr *Transfer) queueLoads(list []*promotion) (queued []*state.Secondary) {
	tr.Mu.Lock()
	closed := tr.Mu.Closed
	if !closed {
		for _, p := range list {
			p.asked++
			p.Spare = p.Spare && p.asked == 1
			if p.Seq = 0; p.tier == tr.Remote || p.tier.Finder != nil && !p.Sum.Valid {
				p.Seq = p.seq
			}
			p.tier.QueueLoadLocked(&p.Load)
			if !slices.Contains(queued, p.tier) {
				queued = append(queued, p.tier)
			}
		}
	}
	tr.Mu.Unlock()
	if closed {
		for _, p := range list {
			tr.failPromotion(p, block.ErrClosed)
		}
	}
	return queued
}

// learnAttrs takes over the attributes that the holder of a block has sent.
func (tr *Transfer) learnAttrs(p *promotion, a *driver.Attrs) {
	if a == nil {
		return
	}
	tr.Mu.Lock()
	defer tr.Mu.Unlock()
	en := tr.promotedEntryLocked(p)
	if en == nil || en.Seq() != a.Seq {
		return
	}
	if en.Flags()&index.FlagUnread != 0 {
		tr.ApplyLocked(catalog.Attributed{ID: p.id, User: a.User})
	}
	if tr.Remote == nil || en.Tiers() != tr.Remote.Bit {
		return
	}
	tr.ApplyLocked(&catalog.Attrs{
		ID: p.id, Mode: uint16(state.ModeRegular | a.Mode&0o7777), UID: a.UID, GID: a.GID,
		Mtime: a.Mtime, Atime: en.Atime(), Ctime: max(a.Mtime, en.Ctime()),
	})
	if a.Expires != 0 && tr.Mu.Ix.Expires(p.id) != a.Expires {
		tr.ApplyLocked(catalog.Expires{ID: p.id, At: a.Expires})
	}
}
