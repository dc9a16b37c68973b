package lower

import (
	"context"
	"errors"
	"math/bits"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// loads is the room of promotions: bringing blocks into memory from the tiers below.
type loads struct {
	*core

	hints state.Allowance // calls of Hint under way

	// Guarded by State.Mu.
	promotions map[index.ID]*promotion // under way
	orphans    map[*promotion]struct{} // under way, but their names are gone
}

// promotion brings one hollow block into memory. An entry has one promotion at most, however many callers wait for
// it. The promotion belongs to the engine, and goes on when those callers leave.
type promotion struct {
	lane.Load // Key: as the tier was asked; Copy: asked for by Take

	e  *core
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

// Promote has a hollow block brought into memory and waits until it is there, for PromoteTimeout at most. With hint
// set it does not wait. On success the caller has one of the block's Opens, which keeps the block there and is given
// back with CloseRead.
//
// It fails with ErrPending (hint); ErrNotFound (no tier could give the block, or not in time, or memory is full of
// blocks that cannot be evicted); ErrStale (the name is gone); or ctx's error.
func (e *loads) Promote(ctx context.Context, w state.Waiter, id index.ID, hint bool) error {
	return e.PromoteWithin(ctx, w, id, hint, state.NoDeadline)
}

// PromoteWithin is promote, but gives up after deadline, too.
func (e *loads) PromoteWithin(ctx context.Context, w state.Waiter, id index.ID, hint bool, deadline time.Duration) error {
	e.Mu.Lock()
	p, first := e.promotionLocked(id, false)
	if p == nil {
		e.Mu.Unlock()
		return state.ErrStale
	}
	if hint && first && len(e.promotions) > maxHints {
		delete(e.promotions, id)
		e.Mu.Unlock()
		return block.ErrPending
	}
	if !hint {
		p.waiters++
		p.tier.HastenLocked(&p.Load)
	}
	e.Mu.Unlock()
	if hint {
		if first {
			e.Work.Go(func() { e.beginPromotion(e.Ctx, p) }) // ends with the engine's context at the latest
		}
		return block.ErrPending
	}
	state.Announce(w)
	if first {
		e.startPromotion(p)
	}
	return e.awaitPromotion(ctx, p, nil, deadline)
}

// PromoteOwn is promote on behalf of another node. It takes the block only from this node's tiers: it must not ask
// other nodes, because they may be waiting for this one. It fails with ErrNotFound where only other nodes could give
// the block.
func (e *loads) PromoteOwn(ctx context.Context, id index.ID) error {
	e.Mu.Lock()
	p, first := e.promotionLocked(id, true)
	switch {
	case p == nil:
		e.Mu.Unlock()
		return state.ErrStale
	case p.tier == e.Remote:
		if first {
			delete(e.promotions, id)
		}
		e.Mu.Unlock()
		return block.ErrNotFound
	}
	p.waiters++
	e.Mu.Unlock()
	if first {
		e.startPromotion(p)
	}
	return e.awaitPromotion(ctx, p, p.away, state.NoDeadline)
}

// promotionLocked returns the promotion of a hollow block. If there is none it makes one, and the caller sees to its
// start. own says that the caller would not have the block from other nodes. The result is nil if the block is not
// hollow.
func (e *loads) promotionLocked(id index.ID, own bool) (p *promotion, first bool) {
	en := e.Mu.Ix.At(id)
	if !e.HollowLocked(id, en) || e.Mu.Closed {
		return nil, false
	}
	if p = e.promotions[id]; p != nil {
		p.own = p.own && own
		return p, false
	}
	p = &promotion{
		e: e.core, id: id, seq: en.Seq, own: own && e.OwnTiers(en) != 0, away: make(chan struct{}), done: make(chan struct{}),
		bill: e.Mu.Room.Bill(en.Group, en.Accounts), // what is pinned of it counts already
	}
	p.Load = lane.Load{Size: en.Size, Sum: block.Checksum{Sum: en.Sum, Valid: en.HasSum()}, For: p}
	e.promotions[id] = p
	e.chooseLocked(p, en)
	return p, true
}

// PromoteLater is promote for a caller that does not wait. It calls then when the block is in memory or cannot be
// had, from any goroutine, possibly before PromoteLater returns. then must not block. PromoteLater gives up after
// deadline.
func (e *loads) PromoteLater(id index.ID, deadline time.Duration, then func(file *os.File, err error)) {
	e.Mu.Lock()
	p, first := e.promotionLocked(id, false)
	if p == nil {
		e.Mu.Unlock()
		then(nil, state.ErrStale)
		return
	}
	p.waiters++
	p.tier.HastenLocked(&p.Load)
	until := e.Now() + int64(min(deadline, e.Opts.PromoteTimeout))
	p.later = append(p.later, laterOpen{then, until, deadline < e.Opts.PromoteTimeout})
	e.Mu.Unlock()
	if first {
		e.startPromotion(p)
	}
	if deadline < e.Opts.PromoteTimeout {
		time.AfterFunc(deadline, func() { e.turnAway([]*promotion{p}, until) }) // whatever the clock of now says
	}
}

// startPromotion begins a promotion without waiting for room.
func (e *loads) startPromotion(p *promotion) {
	if e.tryRoomForPromotion(p) == nil {
		e.fillPromotion(p)
		return
	}
	e.Work.Go(func() { e.beginPromotion(e.Ctx, p) }) // ends with the engine's context at the latest
}

// startPromotions is startPromotion for several promotions at a time, so that a tier gets them in few jobs.
func (e *loads) startPromotions(list []*promotion) {
	ready := list[:0]
	for _, p := range list {
		if e.tryRoomForPromotion(p) != nil {
			e.Work.Go(func() { e.beginPromotion(e.Ctx, p) }) // ends with the engine's context at the latest
			continue
		}
		if e.makeFile(p) {
			ready = append(ready, p)
		}
	}
	for _, s := range e.queueLoads(ready) {
		s.Flush()
	}
}

// maxHints bounds the promotions for which no caller waits.
const maxHints = 256

// chooseLocked picks the tier to ask next. It returns false if no tier is left.
func (e *loads) chooseLocked(p *promotion, en *index.Entry) bool {
	left := en.Tiers &^ p.tried
	if own := left &^ e.RemoteBit(); own != 0 || p.own {
		left = own // other nodes last
	}
	if left == 0 {
		return false
	}
	p.tier = e.Tiers[bits.TrailingZeros16(left)]
	if p.tier == e.Remote {
		close(p.away) // once: no tier is left then
	}
	p.Key = e.KeyLocked(p.id)
	p.asked = 0
	return true
}

// beginPromotion makes room and a file for the block, and asks the tier for it.
func (e *loads) beginPromotion(ctx context.Context, p *promotion) {
	if err := e.roomForPromotion(ctx, p); err != nil {
		e.noRoom(p, err)
		return
	}
	e.fillPromotion(p)
}

func (e *loads) noRoom(p *promotion, err error) {
	e.Mu.Lock()
	e.Mu.Counters.PromoteNoRoom++
	e.Mu.Unlock()
	e.failPromotion(p, err)
}

// fillPromotion makes the file of a promotion that has room, and asks the tier for the block.
func (e *loads) fillPromotion(p *promotion) {
	if e.makeFile(p) {
		e.requestLoad(p)
	}
}

// makeFile makes the file of a promotion that has room. It returns false if the promotion has failed.
func (e *loads) makeFile(p *promotion) bool {
	err := e.space.AtOnce(func() (err error) {
		p.blob, p.File, err = e.Primary.Create()
		return err
	})
	if err != nil {
		e.noRoom(p, err)
	}
	return err == nil
}

// roomForPromotion reserves memory for the block. Like a writer it waits for pins to go, for WriteTimeout and
// PromoteTimeout at most. It evicts no block that is leased or has no copy yet: a miss is better.
func (e *loads) roomForPromotion(ctx context.Context, p *promotion) error {
	deadline := e.Opts.Now().Add(min(e.Opts.WriteTimeout, e.Opts.PromoteTimeout))
	for waited := false; ; waited = true {
		left := deadline.Sub(e.Opts.Now())
		short := e.tryRoomForPromotion(p)
		switch {
		case short == nil:
			return nil
		case short.hopeless != nil:
			return &block.Error{Op: "promote", Tier: "memory", Key: p.Key, Err: short.hopeless}
		case left <= 0:
			return &block.Error{Op: "promote", Tier: "memory", Key: p.Key, Err: block.ErrNoSpace}
		}
		if !waited {
			e.space.Full(state.ChargeOf(p.Size), short.until)
		}
		left = min(left, short.left)
		if short.until > 0 {
			left = min(left, time.Duration(short.until-e.Now())+time.Millisecond)
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
	hopeless error         // not nil: no attempt is worthwhile
}

// tryRoomForPromotion reserves memory for the block if that takes no waiting, and returns nil then.
func (e *loads) tryRoomForPromotion(p *promotion) *shortage {
	n := state.ChargeOf(p.Size)
	var g state.Gone
	e.space.Gauge(n, false)
	e.Mu.Lock()
	short := &shortage{space: e.Mu.Room.Space(), left: e.Mu.Room.Wait(e.Opts.WriteTimeout), hopeless: e.Mu.Room.Hopeless(p.bill, 0, n)}
	ok := false
	if short.hopeless == nil {
		ok, short.until = e.space.RoomLocked(p.bill, n, false, &g)
	}
	if ok {
		p.charge = n
		e.chargePromotionLocked(p, n)
	}
	high := ok && e.Mu.Room.High(0)
	e.Mu.Unlock()
	e.Finish(&g)
	if high {
		e.space.WakeEvictor()
	}
	if ok {
		return nil
	}
	return short
}

// chargePromotionLocked accounts for the memory of a promotion under way.
func (e *loads) chargePromotionLocked(p *promotion, n int64) {
	e.Mu.Room.Charge(p.bill, n, true)
}

// finishPromotion enters a loaded block in memory, unless the name means something else by now.
func (e *loads) finishPromotion(s *state.Secondary, p *promotion, o *driver.Outcome) {
	later, err := []laterOpen(nil), errChanged
	for err == errChanged {
		// Adopt compares the file's time with the record's.
		mtime := e.promotedMtime(p)
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
		if err = os.NewSyscallError("futimens", state.Futimens(int(p.File.Fd()), ts)); err == nil {
			later, err = e.enterPromoted(s, p, o, mtime)
		}
	}
	if err != nil {
		e.failPromotion(p, err)
		return
	}
	close(p.done)
	for _, l := range later {
		l.then(p.File, nil)
	}
	if err := e.writing.WriteRecord(p.id, p.File); err != nil {
		e.Log.Warn("record of a promoted block", zap.Stringer("key", p.Key), zap.Error(err))
	}
	e.names.Forget(p.id, 1)
	p.File.Close()
}

// errChanged says that a block got another time while it was being entered.
var errChanged = errors.New("the file has changed")

// promotedMtime returns the modification time that the entry of a promotion has now, in nanoseconds.
func (e *loads) promotedMtime(p *promotion) int64 {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if en := e.promotedEntryLocked(p); en != nil {
		return en.Mtime
	}
	return 0
}

// enterPromoted enters a loaded block, whose file has the time mtime, in memory, with one reference by the caller.
// It returns the waiters to call. It fails with errChanged if the entry has another time by now, and with ErrStale if
// the name means something else.
func (e *loads) enterPromoted(s *state.Secondary, p *promotion, o *driver.Outcome, mtime int64) ([]laterOpen, error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	en := e.promotedEntryLocked(p)
	if en != nil && en.Mtime != mtime {
		return nil, errChanged
	}
	s.StatsLocked().Promoted++
	s.StatsLocked().PromotedBytes += uint64(p.Size)
	if en == nil {
		return nil, state.ErrStale
	}
	e.chargePromotionLocked(p, -p.charge)
	en.Blob = uint64(p.blob)
	if o.Sum.Valid && !en.HasSum() {
		en.Sum, en.Flags = o.Sum.Sum, en.Flags|index.FlagSum
	}
	en.Atime = e.Now()
	e.Mu.Hollow--
	e.Mu.Blocks++
	e.AddUsedLocked(en, p.charge)
	en.Opens += uint32(p.waiters)
	en.Lookups++ // until the record is written, so that the entry stays
	e.ClassifyLocked(p.id, en)
	e.TierEventLocked(event.Stored, "memory", p.id, fate.Cause{Reason: fate.ReasonPromoted})
	e.elsewhere.OwnDirsLocked(p.id)
	delete(e.promotions, p.id)
	p.finished = true
	return p.later, nil
}

// promotedEntryLocked returns the entry of a promotion if it still stands for the block that the promotion was begun
// for, else nil.
func (e *loads) promotedEntryLocked(p *promotion) *index.Entry {
	if !e.Mu.Ix.Valid(p.id) || e.promotions[p.id] != p {
		return nil
	}
	en := e.Mu.Ix.At(p.id)
	if en.Seq != p.seq || en.InMemory() || e.Mu.Files[p.id] != nil || !e.Mu.Ix.Linked(p.id) {
		return nil
	}
	return en
}

// Again implements lane.Loader. It asks the same tier once more, now that the queued renames have been done.
func (p *promotion) Again() {
	e := p.e
	e.Mu.Lock()
	en := e.loads.promotedEntryLocked(p)
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
		e.loads.failPromotion(p, state.ErrStale)
		return
	}
	e.loads.requestLoad(p)
}

// Closed implements lane.Loader.
func (p *promotion) Closed() { p.e.loads.failPromotion(p, block.ErrClosed) }

// Loaded implements lane.Loader.
func (p *promotion) Loaded(o *driver.Outcome) {
	switch {
	case p.aside != nil:
		p.aside(o)
	case o.Status == driver.Loaded:
		p.e.loads.learnAttrs(p, o.Attrs)
		p.e.loads.finishPromotion(p.tier, p, o)
	default:
		p.e.loads.retryPromotion(p.tier, p, o)
	}
}

// requestLoad asks the tier of a promotion for its block, along with the other blocks in the tier's queue.
func (e *loads) requestLoad(p *promotion) {
	for _, s := range e.queueLoads([]*promotion{p}) {
		s.Ask()
	}
}

// queueLoads puts promotions into the queues of their tiers, and returns these tiers.
func (e *loads) queueLoads(list []*promotion) (queued []*state.Secondary) {
	e.Mu.Lock()
	closed := e.Mu.Closed
	if !closed {
		for _, p := range list {
			p.asked++
			if p.Seq = 0; p.tier == e.Remote || p.tier.Finder != nil && !p.Sum.Valid {
				p.Seq = p.seq
			}
			p.tier.QueueLoadLocked(&p.Load)
			if !slices.Contains(queued, p.tier) {
				queued = append(queued, p.tier)
			}
		}
	}
	e.Mu.Unlock()
	if closed {
		for _, p := range list {
			e.failPromotion(p, block.ErrClosed)
		}
	}
	return queued
}

// learnAttrs takes over the attributes that the holder of a block has sent.
func (e *loads) learnAttrs(p *promotion, a *driver.Attrs) {
	if a == nil || e.Remote == nil {
		return
	}
	e.Mu.Lock()
	defer e.Mu.Unlock()
	en := e.promotedEntryLocked(p)
	if en == nil || en.Seq != a.Seq || en.Tiers != e.Remote.Bit {
		return
	}
	en.Mode = uint16(state.ModeRegular | a.Mode&0o7777)
	e.ChownLocked(p.id, en, a.UID, a.GID)
	en.Mtime, en.Ctime = a.Mtime, max(a.Mtime, en.Ctime)
	if a.Expires != 0 && e.Mu.Ix.Expires(p.id) != a.Expires {
		e.Mu.Ix.SetExpires(p.id, a.Expires)
	}
}
