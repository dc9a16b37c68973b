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
func (ld *loads) Promote(ctx context.Context, w state.Waiter, id index.ID, hint bool) error {
	return ld.PromoteWithin(ctx, w, id, hint, state.NoDeadline)
}

// PromoteWithin is promote, but gives up after deadline, too.
func (ld *loads) PromoteWithin(ctx context.Context, w state.Waiter, id index.ID, hint bool, deadline time.Duration) error {
	ld.Mu.Lock()
	p, first := ld.promotionLocked(id, false)
	if p == nil {
		ld.Mu.Unlock()
		return state.ErrStale
	}
	if hint && first && len(ld.promotions) > maxHints {
		delete(ld.promotions, id)
		ld.Mu.Unlock()
		return block.ErrPending
	}
	if !hint {
		p.waiters++
		p.tier.HastenLocked(&p.Load)
	}
	ld.Mu.Unlock()
	if hint {
		if first {
			ld.Work.Go(func() { ld.beginPromotion(ld.Ctx, p) }) // ends with the engine's context at the latest
		}
		return block.ErrPending
	}
	state.Announce(w)
	if first {
		ld.startPromotion(p)
	}
	return ld.awaitPromotion(ctx, p, nil, deadline)
}

// PromoteOwn is promote on behalf of another node. It takes the block only from this node's tiers: it must not ask
// other nodes, because they may be waiting for this one. It fails with ErrNotFound where only other nodes could give
// the block.
func (ld *loads) PromoteOwn(ctx context.Context, id index.ID) error {
	ld.Mu.Lock()
	p, first := ld.promotionLocked(id, true)
	switch {
	case p == nil:
		ld.Mu.Unlock()
		return state.ErrStale
	case p.tier == ld.Remote:
		if first {
			delete(ld.promotions, id)
		}
		ld.Mu.Unlock()
		return block.ErrNotFound
	}
	p.waiters++
	ld.Mu.Unlock()
	if first {
		ld.startPromotion(p)
	}
	return ld.awaitPromotion(ctx, p, p.away, state.NoDeadline)
}

// promotionLocked returns the promotion of a hollow block. If there is none it makes one, and the caller sees to its
// start. own says that the caller would not have the block from other nodes. The result is nil if the block is not
// hollow.
func (ld *loads) promotionLocked(id index.ID, own bool) (p *promotion, first bool) {
	en := ld.Mu.Ix.At(id)
	if !ld.HollowLocked(id, en) || ld.Mu.Closed {
		return nil, false
	}
	if p = ld.promotions[id]; p != nil {
		p.own = p.own && own
		return p, false
	}
	p = &promotion{
		e: ld.core, id: id, seq: en.Seq, own: own && ld.OwnTiers(en) != 0, away: make(chan struct{}), done: make(chan struct{}),
		bill: ld.Mu.Room.Bill(en.Group, en.Accounts), // what is pinned of it counts already
	}
	p.Load = lane.Load{Size: en.Size, Sum: block.Checksum{Sum: en.Sum, Valid: en.HasSum()}, For: p}
	ld.promotions[id] = p
	ld.chooseLocked(p, en)
	return p, true
}

// PromoteLater is promote for a caller that does not wait. It calls then when the block is in memory or cannot be
// had, from any goroutine, possibly before PromoteLater returns. then must not block. PromoteLater gives up after
// deadline.
func (ld *loads) PromoteLater(id index.ID, deadline time.Duration, then func(file *os.File, err error)) {
	ld.Mu.Lock()
	p, first := ld.promotionLocked(id, false)
	if p == nil {
		ld.Mu.Unlock()
		then(nil, state.ErrStale)
		return
	}
	p.waiters++
	p.tier.HastenLocked(&p.Load)
	until := ld.Now() + int64(min(deadline, ld.Opts.PromoteTimeout))
	p.later = append(p.later, laterOpen{then, until, deadline < ld.Opts.PromoteTimeout})
	ld.Mu.Unlock()
	if first {
		ld.startPromotion(p)
	}
	if deadline < ld.Opts.PromoteTimeout {
		time.AfterFunc(deadline, func() { ld.turnAway([]*promotion{p}, until) }) // whatever the clock of now says
	}
}

// startPromotion begins a promotion without waiting for room.
func (ld *loads) startPromotion(p *promotion) {
	if ld.tryRoomForPromotion(p) == nil {
		ld.fillPromotion(p)
		return
	}
	ld.Work.Go(func() { ld.beginPromotion(ld.Ctx, p) }) // ends with the engine's context at the latest
}

// startPromotions is startPromotion for several promotions at a time, so that a tier gets them in few jobs.
func (ld *loads) startPromotions(list []*promotion) {
	ready := list[:0]
	for _, p := range list {
		if ld.tryRoomForPromotion(p) != nil {
			ld.Work.Go(func() { ld.beginPromotion(ld.Ctx, p) }) // ends with the engine's context at the latest
			continue
		}
		if ld.makeFile(p) {
			ready = append(ready, p)
		}
	}
	for _, s := range ld.queueLoads(ready) {
		s.Flush()
	}
}

// maxHints bounds the promotions for which no caller waits.
const maxHints = 256

// chooseLocked picks the tier to ask next. It returns false if no tier is left.
func (ld *loads) chooseLocked(p *promotion, en *index.Entry) bool {
	left := en.Tiers &^ p.tried
	if own := left &^ ld.RemoteBit(); own != 0 || p.own {
		left = own // other nodes last
	}
	if left == 0 {
		return false
	}
	p.tier = ld.Tiers[bits.TrailingZeros16(left)]
	if p.tier == ld.Remote {
		close(p.away) // once: no tier is left then
	}
	p.Key = ld.KeyLocked(p.id)
	p.asked = 0
	return true
}

// beginPromotion makes room and a file for the block, and asks the tier for it.
func (ld *loads) beginPromotion(ctx context.Context, p *promotion) {
	if err := ld.roomForPromotion(ctx, p); err != nil {
		ld.noRoom(p, err)
		return
	}
	ld.fillPromotion(p)
}

func (ld *loads) noRoom(p *promotion, err error) {
	ld.Mu.Lock()
	ld.Mu.Counters.PromoteNoRoom++
	ld.Mu.Unlock()
	ld.failPromotion(p, err)
}

// fillPromotion makes the file of a promotion that has room, and asks the tier for the block.
func (ld *loads) fillPromotion(p *promotion) {
	if ld.makeFile(p) {
		ld.requestLoad(p)
	}
}

// makeFile makes the file of a promotion that has room. It returns false if the promotion has failed.
func (ld *loads) makeFile(p *promotion) bool {
	err := ld.space.AtOnce(func() (err error) {
		p.blob, p.File, err = ld.Primary.Create()
		return err
	})
	if err != nil {
		ld.noRoom(p, err)
	}
	return err == nil
}

// roomForPromotion reserves memory for the block. Like a writer it waits for pins to go, for WriteTimeout and
// PromoteTimeout at most. It evicts no block that is leased or has no copy yet: a miss is better.
func (ld *loads) roomForPromotion(ctx context.Context, p *promotion) error {
	deadline := ld.Opts.Now().Add(min(ld.Opts.WriteTimeout, ld.Opts.PromoteTimeout))
	for waited := false; ; waited = true {
		left := deadline.Sub(ld.Opts.Now())
		short := ld.tryRoomForPromotion(p)
		switch {
		case short == nil:
			return nil
		case short.hopeless != nil:
			return &block.Error{Op: "promote", Tier: "memory", Key: p.Key, Err: short.hopeless}
		case left <= 0:
			return &block.Error{Op: "promote", Tier: "memory", Key: p.Key, Err: block.ErrNoSpace}
		}
		if !waited {
			ld.space.Full(state.ChargeOf(p.Size), short.until)
		}
		left = min(left, short.left)
		if short.until > 0 {
			left = min(left, time.Duration(short.until-ld.Now())+time.Millisecond)
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
func (ld *loads) tryRoomForPromotion(p *promotion) *shortage {
	n := state.ChargeOf(p.Size)
	var g state.Gone
	ld.space.Gauge(n, false)
	ld.Mu.Lock()
	short := &shortage{space: ld.Mu.Room.Space(), left: ld.Mu.Room.Wait(ld.Opts.WriteTimeout), hopeless: ld.Mu.Room.Hopeless(p.bill, 0, n)}
	ok := false
	if short.hopeless == nil {
		ok, short.until = ld.space.RoomLocked(p.bill, n, false, &g)
	}
	if ok {
		p.charge = n
		ld.chargePromotionLocked(p, n)
	}
	high := ok && ld.Mu.Room.High(0)
	ld.Mu.Unlock()
	ld.Finish(&g)
	if high {
		ld.space.WakeEvictor()
	}
	if ok {
		return nil
	}
	return short
}

// chargePromotionLocked accounts for the memory of a promotion under way.
func (ld *loads) chargePromotionLocked(p *promotion, n int64) {
	ld.Mu.Room.Charge(p.bill, n, true)
}

// finishPromotion enters a loaded block in memory, unless the name means something else by now.
func (ld *loads) finishPromotion(s *state.Secondary, p *promotion, o *driver.Outcome) {
	later, err := []laterOpen(nil), errChanged
	for err == errChanged {
		// Adopt compares the file's time with the record's.
		mtime := ld.promotedMtime(p)
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
		if err = os.NewSyscallError("futimens", state.Futimens(int(p.File.Fd()), ts)); err == nil {
			later, err = ld.enterPromoted(s, p, o, mtime)
		}
	}
	if err != nil {
		ld.failPromotion(p, err)
		return
	}
	close(p.done)
	for _, l := range later {
		l.then(p.File, nil)
	}
	if err := ld.writing.WriteRecord(p.id, p.File); err != nil {
		ld.Log.Warn("record of a promoted block", zap.Stringer("key", p.Key), zap.Error(err))
	}
	ld.names.Forget(p.id, 1)
	p.File.Close()
}

// errChanged says that a block got another time while it was being entered.
var errChanged = errors.New("the file has changed")

// promotedMtime returns the modification time that the entry of a promotion has now, in nanoseconds.
func (ld *loads) promotedMtime(p *promotion) int64 {
	ld.Mu.Lock()
	defer ld.Mu.Unlock()
	if en := ld.promotedEntryLocked(p); en != nil {
		return en.Mtime
	}
	return 0
}

// enterPromoted enters a loaded block, whose file has the time mtime, in memory, with one reference by the caller.
// It returns the waiters to call. It fails with errChanged if the entry has another time by now, and with ErrStale if
// the name means something else.
func (ld *loads) enterPromoted(s *state.Secondary, p *promotion, o *driver.Outcome, mtime int64) ([]laterOpen, error) {
	ld.Mu.Lock()
	defer ld.Mu.Unlock()
	en := ld.promotedEntryLocked(p)
	if en != nil && en.Mtime != mtime {
		return nil, errChanged
	}
	s.StatsLocked().Promoted++
	s.StatsLocked().PromotedBytes += uint64(p.Size)
	if en == nil {
		return nil, state.ErrStale
	}
	ld.chargePromotionLocked(p, -p.charge)
	en.Blob = uint64(p.blob)
	if o.Sum.Valid && !en.HasSum() {
		en.Sum, en.Flags = o.Sum.Sum, en.Flags|index.FlagSum
	}
	en.Atime = ld.Now()
	ld.RecountLocked(state.Hollow, state.Resident)
	ld.AddUsedLocked(en, p.charge)
	en.Opens += uint32(p.waiters)
	en.Lookups++ // until the record is written, so that the entry stays
	ld.ClassifyLocked(p.id, en)
	ld.TierEventLocked(event.Stored, "memory", p.id, fate.Cause{Reason: fate.ReasonPromoted})
	ld.elsewhere.OwnDirsLocked(p.id)
	delete(ld.promotions, p.id)
	p.finished = true
	return p.later, nil
}

// promotedEntryLocked returns the entry of a promotion if it still stands for the block that the promotion was begun
// for, else nil.
func (ld *loads) promotedEntryLocked(p *promotion) *index.Entry {
	if !ld.Mu.Ix.Valid(p.id) || ld.promotions[p.id] != p {
		return nil
	}
	en := ld.Mu.Ix.At(p.id)
	if en.Seq != p.seq || en.InMemory() || ld.Mu.Files[p.id] != nil || !ld.Mu.Ix.Linked(p.id) {
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
func (ld *loads) requestLoad(p *promotion) {
	for _, s := range ld.queueLoads([]*promotion{p}) {
		s.Ask()
	}
}

// queueLoads puts promotions into the queues of their tiers, and returns these tiers.
func (ld *loads) queueLoads(list []*promotion) (queued []*state.Secondary) {
	ld.Mu.Lock()
	closed := ld.Mu.Closed
	if !closed {
		for _, p := range list {
			p.asked++
			if p.Seq = 0; p.tier == ld.Remote || p.tier.Finder != nil && !p.Sum.Valid {
				p.Seq = p.seq
			}
			p.tier.QueueLoadLocked(&p.Load)
			if !slices.Contains(queued, p.tier) {
				queued = append(queued, p.tier)
			}
		}
	}
	ld.Mu.Unlock()
	if closed {
		for _, p := range list {
			ld.failPromotion(p, block.ErrClosed)
		}
	}
	return queued
}

// learnAttrs takes over the attributes that the holder of a block has sent.
func (ld *loads) learnAttrs(p *promotion, a *driver.Attrs) {
	if a == nil || ld.Remote == nil {
		return
	}
	ld.Mu.Lock()
	defer ld.Mu.Unlock()
	en := ld.promotedEntryLocked(p)
	if en == nil || en.Seq != a.Seq || en.Tiers != ld.Remote.Bit {
		return
	}
	en.Mode = uint16(state.ModeRegular | a.Mode&0o7777)
	ld.ChownLocked(p.id, en, a.UID, a.GID)
	en.Mtime, en.Ctime = a.Mtime, max(a.Mtime, en.Ctime)
	if a.Expires != 0 && ld.Mu.Ix.Expires(p.id) != a.Expires {
		ld.Mu.Ix.SetExpires(p.id, a.Expires)
	}
}
