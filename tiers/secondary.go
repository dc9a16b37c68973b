package tiers

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// CascadeMode says when committed blocks are copied down to a secondary tier.
type CascadeMode string

// The cascade modes; the empty one is CascadeAsync.
const (
	CascadeAsync   CascadeMode = "async"    // in the background
	CascadeSync    CascadeMode = "sync"     // close and rename wait for the copy
	CascadeOnEvict CascadeMode = "on_evict" // before the block leaves memory
	CascadeOff     CascadeMode = "off"      // only if fsync asks for the copy
)

// SecondaryOptions describes one secondary tier.
type SecondaryOptions struct {
	Name    string      // required; "memory" is taken
	Tier    driver.Tier // required; closed by Engine.Close
	Cascade CascadeMode

	// QueueBytes bounds the bytes of blocks that wait for this tier and cannot be evicted meanwhile. Further blocks
	// wait, too, but can be evicted. Zero means a quarter of the capacity, at most 1 GiB.
	QueueBytes int64

	// SecondHit copies down only blocks that were written or read before. Blocks used once then do not wear the
	// device.
	SecondHit bool
}

// maxSecondaries is how many bits index.Entry.Tiers has.
const maxSecondaries = 16

// secondary is the engine's side of one secondary tier, and the Owner of its lane (lanes.go).
type secondary struct {
	*lane.Lane // guarded by core.mu
	e          *core
	opts       SecondaryOptions // constant
	tier       driver.Tier
	n          int
	bit        uint16
	syncer     driver.Syncer // nil if the tier is none
	predict    lane.Predictor
}

// checkSecondaries fills in the defaults of o.Secondaries and returns what is wrong with them.
func (o *Options) checkSecondaries() []error {
	var errs []error
	names := map[string]bool{"memory": true}
	remotes := 0
	if len(o.Secondaries) > maxSecondaries {
		errs = append(errs, fmt.Errorf("%d secondary tiers: at most %d", len(o.Secondaries), maxSecondaries))
	}
	o.Secondaries = append([]SecondaryOptions(nil), o.Secondaries...)
	for i := range o.Secondaries {
		s := &o.Secondaries[i]
		if s.Cascade == "" {
			s.Cascade = CascadeAsync
		}
		if s.QueueBytes == 0 {
			s.QueueBytes = min(o.CapacityBytes/4, 1<<30)
		}
		switch {
		case s.Tier == nil:
			errs = append(errs, fmt.Errorf("secondary tier %q missing", s.Name))
		case s.Name == "" || names[s.Name]:
			errs = append(errs, fmt.Errorf("secondary tier %d: name %q is empty or taken", i, s.Name))
		case s.Cascade != CascadeAsync && s.Cascade != CascadeSync && s.Cascade != CascadeOnEvict && s.Cascade != CascadeOff:
			errs = append(errs, fmt.Errorf("secondary tier %q: cascade %q: want async, sync, on_evict or off", s.Name, s.Cascade))
		case s.QueueBytes < 0:
			errs = append(errs, fmt.Errorf("secondary tier %q: queue of %d bytes", s.Name, s.QueueBytes))
		}
		names[s.Name] = true
		if _, ok := s.Tier.(driver.Remote); ok {
			remotes++
		}
	}
	if remotes > 1 {
		errs = append(errs, fmt.Errorf("%d tiers of other nodes: at most one", remotes))
	}
	return errs
}

// addSecondaries makes the engine's side of the tiers.
func (e *copies) addSecondaries() {
	for i, o := range e.opts.Secondaries {
		s := &secondary{e: e.core, opts: o, tier: o.Tier, n: i, bit: 1 << i}
		s.Lane = lane.New(lane.Options{
			Name: o.Name, Tier: o.Tier, Bit: s.bit, QueueBytes: o.QueueBytes, SecondHit: o.SecondHit,
			BatchKeys: e.opts.PromoteBatchKeys, BatchBytes: e.opts.PromoteBatchBytes, Window: e.opts.PromoteWindow, Predict: &s.predict,
			Lock: &e.mu, Owner: s, NextJob: e.nextJob, Now: func() time.Time { return e.opts.Now() }, Logger: e.log,
		})
		s.syncer, _ = o.Tier.(driver.Syncer)
		if far, ok := o.Tier.(driver.Remote); ok {
			e.remote, e.far = s, far
		}
		if o.Cascade == CascadeOnEvict {
			e.lazy |= s.bit
		}
		if h, ok := o.Tier.(driver.Hosted); ok {
			h.SetHost(&host{e.core, s})
		}
		e.tiers = append(e.tiers, s)
	}
}

func (e *core) nextJob() driver.JobID { return driver.JobID(e.jobs.Add(1)) }

// host is the engine as one tier sees it.
type host struct {
	e *core
	s *secondary
}

var _ driver.Host = (*host)(nil)

// MayEvict implements Host.
func (h *host) MayEvict(key block.Key) bool {
	e := h.e
	var g gone
	e.mu.Lock()
	ok := e.mayEvictLocked(h.s, key, &g)
	e.mu.Unlock()
	e.finish(&g)
	return ok
}

func (e *core) mayEvictLocked(s *secondary, key block.Key, g *gone) bool {
	if s.NamingLocked(key) {
		return false // a rename of the copy is under way: whether it was promised is not known
	}
	id := e.mu.ix.Walk(key.Path())
	if id == 0 {
		return true
	}
	en := e.mu.ix.At(id)
	if en.Tiers&s.bit == 0 {
		return true
	}
	if e.hollowLocked(id, en) && (en.Tiers == s.bit || e.ownTiers(en) == s.bit) {
		if en.Lease > e.now() || en.Opens > 0 || en.Flags&flagPinned != 0 || e.mu.promotions[id] != nil {
			return false
		}
	}
	e.copies.forgetCopyLocked(s, id, en, fate.ReasonCapacity, g)
	return true
}

// forgetCopyLocked notes that a tier has lost its copy of a block. If no other tier has one, the name goes.
func (e *copies) forgetCopyLocked(s *secondary, id index.ID, en *index.Entry, reason fate.Reason, g *gone) {
	hollow := e.hollowLocked(id, en)
	e.clearTiersLocked(id, en, s.bit)
	e.tierEventLocked(event.Evicted, s.opts.Name, id, fate.Cause{Reason: reason})
	if hollow && en.Tiers == 0 {
		e.names.dropNameLocked(id, en, event.Removed, fate.Cause{Reason: reason}, g)
	} else if hollow {
		e.elsewhere.settleRemoteLocked(id, en, g)
	}
}

// clearTiersLocked notes that some tiers do not have a block any more.
func (e *copies) clearTiersLocked(id index.ID, en *index.Entry, bits uint16) {
	if e.remote != nil && en.Tiers&bits&e.remote.bit != 0 {
		e.far.Unwatch(e.keyLocked(id))
	}
	en.Tiers &^= bits
}

// Lost implements Host.
func (h *host) Lost(key block.Key, err error) {
	e := h.e
	var g gone
	e.mu.Lock()
	if id := e.mu.ix.Walk(key.Path()); id != 0 {
		parent := e.mu.ix.Parent(id)
		if en := e.mu.ix.At(id); en.Mode&modeType == modeDir {
			e.elsewhere.lostDirLocked(id, en, &g)
		} else if en.Tiers&h.s.bit != 0 && h.s.NamingLocked(key) {
			// The tier lost the copy of this block or of one before. It answers when it is told the present
			// attributes.
			attrs := e.attrsLocked(id, en)
			h.s.UpdateLocked(lane.Update{From: key, To: key, Attrs: &attrs, ID: id})
		} else if en.Tiers&h.s.bit != 0 {
			reason := fate.ReasonUnavailable
			if errors.Is(err, block.ErrCorrupt) {
				reason = fate.ReasonCorrupt
			}
			e.copies.forgetCopyLocked(h.s, id, en, reason, &g)
			if e.mu.ix.Valid(id) && e.mu.ix.Linked(id) && reason == fate.ReasonCorrupt {
				e.copies.cascadeToLocked(h.s, id, en) // memory still has it
			}
		}
		if h.s == e.remote {
			e.elsewhere.settleParentLocked(parent, &g)
		}
	}
	e.mu.Unlock()
	e.finish(&g)
}

// hollowLocked reports whether a file is committed and only in secondary tiers.
func (e *core) hollowLocked(id index.ID, en *index.Entry) bool {
	return en.Blob == 0 && en.Tiers != 0 && en.Mode&modeType != modeDir && en.Flags&flagUncommitted == 0 &&
		e.mu.ix.Linked(id) && e.mu.files[id] == nil
}

// remoteBit is the bit of the Remote tier in Entry.Tiers, 0 without one.
func (e *core) remoteBit() uint16 {
	if e.remote == nil {
		return 0
	}
	return e.remote.bit
}

// ownTiers are the tiers of this node that have a block. Other nodes may give up their copies at any time.
func (e *core) ownTiers(en *index.Entry) uint16 { return en.Tiers &^ e.remoteBit() }

// farLocked reports whether only other nodes have the bytes of a file.
func (e *core) farLocked(id index.ID, en *index.Entry) bool {
	return e.hollowLocked(id, en) && e.ownTiers(en) == 0
}

// fileAttrs is attrsLocked without the directories above.
func fileAttrs(en *index.Entry) driver.Attrs {
	return driver.Attrs{
		Seq: en.Seq, Mode: en.Mode & 0o7777, UID: en.UID, GID: en.GID,
		Mtime: en.Mtime, Expires: en.Expires, Pinned: en.Flags&flagPinned != 0,
	}
}

// attrsLocked is what a tier is to keep with a block.
func (e *core) attrsLocked(id index.ID, en *index.Entry) driver.Attrs {
	a := fileAttrs(en)
	depth := 0
	for p := e.mu.ix.Parent(id); p != index.Root && p != 0; p = e.mu.ix.Parent(p) {
		depth++
	}
	a.Dirs = make([]driver.DirAttrs, depth)
	for p := e.mu.ix.Parent(id); p != index.Root && p != 0; p = e.mu.ix.Parent(p) {
		depth--
		de := e.mu.ix.At(p)
		a.Dirs[depth] = driver.DirAttrs{Mode: de.Mode & 0o7777, UID: de.UID, GID: de.GID}
	}
	return a
}

// keyLocked is the key of a file that has a name.
func (e *core) keyLocked(id index.ID) block.Key {
	key, _ := block.ParseKey(e.mu.ix.Path(id))
	return key
}

// removeCopiesLocked tells the tiers that a block is gone for good.
func (e *copies) removeCopiesLocked(id index.ID, en *index.Entry) {
	bits := en.Tiers | en.Storing
	if en.Flags&flagSynced != 0 {
		bits |= e.keeper().bit
	}
	if bits == 0 || len(e.tiers) == 0 {
		return
	}
	key := e.keyLocked(id)
	for _, s := range e.tiers {
		if bits&s.bit != 0 && s != e.remote { // the Remote gets a grave instead
			s.RemoveLocked(key)
		}
	}
	e.clearTiersLocked(id, en, en.Tiers)
	en.Storing = 0
	en.Flags &^= flagSynced
}

// staleCopiesLocked removes the copies of a block that has a new version under the same name. A copy that fsync
// promised stays until the copy of the new version takes its place.
func (e *copies) staleCopiesLocked(id index.ID, en *index.Entry) {
	if en.Flags&flagSynced == 0 {
		e.removeCopiesLocked(id, en)
		return
	}
	s := e.keeper()
	en.Tiers &^= s.bit
	en.Storing &^= s.bit
	en.Flags &^= flagSynced
	e.removeCopiesLocked(id, en)
	en.Flags |= flagSynced
}

// updateCopiesLocked tells the tiers that a block was renamed from from, or has other attributes. A copy that has not
// begun will have them anyway, and until it begins the tier may hold another block under the name.
func (e *copies) updateCopiesLocked(id index.ID, en *index.Entry, from block.Key) {
	bits := en.Tiers | en.Storing
	if en.Storing != 0 {
		bits = en.Tiers | e.begunLocked(id, en)
	}
	if bits == 0 {
		return
	}
	to, attrs := e.keyLocked(id), e.attrsLocked(id, en)
	for _, s := range e.tiers {
		if s == e.remote {
			if from != to {
				e.elsewhere.leaveRemoteLocked(en, from.Path())
			}
		} else if bits&s.bit != 0 {
			s.UpdateLocked(lane.Update{From: from, To: to, Attrs: &attrs, ID: id})
		}
	}
}

// begunLocked returns the tiers to which a copy of a block is under way.
func (e *copies) begunLocked(id index.ID, en *index.Entry) (bits uint16) {
	for _, s := range e.tiers {
		for op := range s.BegunLocked() {
			if op.ID == id && op.Seq == en.Seq {
				bits |= s.bit & en.Storing
			}
		}
	}
	return bits
}

// TierNames returns the tiers that hold a file, fastest first.
func (e *report) TierNames(id index.ID) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tierNamesLocked(id)
}

func (e *report) tierNamesLocked(id index.ID) []string {
	en := e.mu.ix.At(id)
	var names []string
	if en.Blob != 0 || e.mu.files[id] != nil {
		names = append(names, "memory")
	}
	for _, s := range e.tiers {
		if en.Tiers&s.bit != 0 {
			names = append(names, s.opts.Name)
		}
	}
	return names
}

// PresenceOf returns whether a file is there: Hit if some tier has it, Pending while it is written or promoted.
func (e *report) PresenceOf(id index.ID) driver.Presence {
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.mu.ix.At(id)
	switch {
	case en.Flags&flagUncommitted != 0, e.mu.promotions[id] != nil:
		return driver.Pending
	case en.Blob != 0, en.Tiers != 0, e.mu.files[id] != nil:
		return driver.Hit
	}
	return driver.Miss
}
