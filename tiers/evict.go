package tiers

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// EvictRequest asks to drop blocks from one tier, as `kvfs evict` does.
type EvictRequest struct {
	Tier  string   // "memory", or the name of a secondary tier
	All   bool     // every block of the tier; Paths must be empty
	Paths []string // below the mount; a directory means all below it
	Force bool     // also blocks that no other tier holds: they are lost
}

// EvictReply says what became of an EvictRequest.
type EvictReply struct {
	Blocks int64 // evicted
	Bytes  int64
	Kept   []EvictKept // the first maxKept blocks that were not evicted, with the reason
	KeptN  int64       // how many blocks were not evicted
}

// EvictKept is a block that was not evicted.
type EvictKept struct {
	Path   string
	Reason outcome.Reason // ReasonOnlyCopy or a later one
}

const (
	maxKept = 1000

	// openGrace is how long EvictFrom waits for the kernel to release files that are closed already.
	openGrace = 2 * time.Second

	// dropBatch bounds how many blocks one hold of the lock evicts.
	dropBatch = 1024
)

// EvictFrom drops blocks from one tier, without regard to leases. Blocks that only that tier holds stay, unless the
// request has Force. Open and pinned blocks always stay. It waits for blocks that are on their way to another tier.
// It fails with ErrInvalid for a tier that does not exist or a request that makes no sense, or with ctx's error: then
// part of the work is done.
func (e *Engine) EvictFrom(ctx context.Context, r EvictRequest) (EvictReply, error) {
	from, err := e.evictSource(&r)
	if err != nil {
		return EvictReply{}, err
	}
	if from == nil && !r.Force {
		if err := e.DrainPresent(ctx); err != nil {
			return EvictReply{}, err
		}
	}
	var reply EvictReply
	ids := e.evictTargets(&r, &reply)
	deadline := time.Now().Add(openGrace)
	for {
		open, err := e.dropAll(ctx, from, &r, ids, &reply)
		if err != nil || len(open) == 0 {
			return reply, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			e.keepOpen(open, &reply)
			return reply, nil
		}
		e.st.Mu.Lock()
		space := e.st.Mu.Room.Space()
		e.st.Mu.Unlock()
		if err := state.WaitSpace(ctx, space, min(left, 50*time.Millisecond)); err != nil {
			return reply, err
		}
		ids = open
	}
}

// dropAll drops blocks from a tier, those that must stay excepted, and returns those that are open. It first waits for
// copies that are under way, unless r has Force. It fails with ctx's error.
func (e *Engine) dropAll(ctx context.Context, from *state.Secondary, r *EvictRequest, ids []index.ID, reply *EvictReply) (open []index.ID, err error) {
	for i := 0; i < len(ids) && ctx.Err() == nil; i += dropBatch {
		some := ids[i:min(i+dropBatch, len(ids))]
		if from == nil && !r.Force {
			if err := e.Transfer.CleanSome(ctx, some); err != nil {
				return nil, err
			}
		}
		open = append(open, e.dropSome(from, r, some, reply)...)
	}
	return open, ctx.Err()
}

// keepOpen enters blocks in the reply that stay because they are open.
func (e *Engine) keepOpen(open []index.ID, reply *EvictReply) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	for _, id := range open {
		if e.st.Mu.Ix.Valid(id) && e.st.Mu.Ix.Linked(id) {
			reply.keep(e.st.Mu.Ix.Path(id), outcome.ReasonOpen)
		}
	}
}

// evictSource checks a request. It returns the secondary tier that the request names, nil for memory.
func (e *Engine) evictSource(r *EvictRequest) (*state.Secondary, error) {
	if r.All == (len(r.Paths) > 0) {
		return nil, fmt.Errorf("evict: either all or paths: %w", block.ErrInvalid)
	}
	names := []string{"memory"}
	for _, s := range e.st.Tiers {
		if s == e.st.Remote {
			continue // other nodes evict their own blocks
		}
		if s.Opts.Name == r.Tier {
			return s, nil
		}
		names = append(names, s.Opts.Name)
	}
	if r.Tier != "memory" {
		return nil, fmt.Errorf("evict: no tier %q; there are: %s: %w", r.Tier, strings.Join(names, ", "), block.ErrInvalid)
	}
	return nil, nil
}

// evictTargets lists the files that a request names.
func (e *Engine) evictTargets(r *EvictRequest, reply *EvictReply) []index.ID {
	var ids []index.ID
	below := func(id index.ID, en *index.Entry) bool {
		if en.IsRegular() {
			ids = append(ids, id)
		}
		return true
	}
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	if r.All {
		e.st.Mu.Ix.Descend(index.Root, below)
		return ids
	}
	for _, path := range r.Paths {
		id := e.st.Mu.Ix.Walk(strings.Trim(path, "/"))
		if id == 0 {
			reply.keep(path, outcome.ReasonNotFound)
			continue
		}
		en := e.st.Mu.Ix.At(id)
		below(id, en)
		if en.IsDir() {
			e.st.Mu.Ix.Descend(id, below)
		}
	}
	return ids
}

func (r *EvictReply) keep(path string, reason outcome.Reason) {
	r.KeptN++
	if len(r.Kept) < maxKept {
		r.Kept = append(r.Kept, EvictKept{path, reason})
	}
}

// dropSome evicts some of the blocks that a request names. It returns those that are open.
func (e *Engine) dropSome(from *state.Secondary, r *EvictRequest, ids []index.ID, reply *EvictReply) (open []index.ID) {
	var g state.Gone
	e.st.Mu.Lock()
	for _, id := range ids {
		if !e.st.Mu.Ix.Valid(id) || !e.st.Mu.Ix.Linked(id) {
			continue
		}
		en := e.st.Mu.Ix.At(id)
		switch reason := e.whyKeptLocked(from, r, id, en); {
		case reason == outcome.ReasonOpen:
			open = append(open, id)
		case reason == outcome.ReasonNotHere && r.All:
		case reason != 0:
			reply.keep(e.st.Mu.Ix.Path(id), reason)
		default:
			reply.Blocks++
			reply.Bytes += en.Size()
			e.dropCopyLocked(from, id, en, &g)
		}
	}
	e.st.Mu.Unlock()
	e.st.Finish(&g)
	return open
}

// whyKeptLocked returns why a block must stay in the tier from, memory if that is nil; 0 if it may go.
func (e *Engine) whyKeptLocked(from *state.Secondary, r *EvictRequest, id index.ID, en *index.Entry) outcome.Reason {
	here, elsewhere, own := e.copiesLocked(from, en)
	pinned := en.Pinned() || e.st.Mu.Room.Group(en.Group()).Pinned()
	switch {
	case en.Flags()&(index.FlagUncommitted|index.FlagTemp) != 0:
		return outcome.ReasonBeingWritten
	case en.IsPlain():
		return outcome.ReasonPinned
	case !here:
		return outcome.ReasonNotHere
	case from == nil && (en.Opens() > 0 || e.st.Mu.Files[id] != nil), e.Transfer.PromotingLocked(id) != "":
		return outcome.ReasonOpen
	case pinned && (from == nil || !own):
		return outcome.ReasonPinned
	case !elsewhere && !r.Force:
		return outcome.ReasonOnlyCopy
	}
	return 0
}

// copiesLocked reports whether a tier, memory if it is nil, has a block, whether another tier has the block, too, and
// whether such a tier is one of this node.
func (e *Engine) copiesLocked(from *state.Secondary, en *index.Entry) (here, elsewhere, own bool) {
	here = en.InMemory()
	if from == nil {
		return here, en.Tiers() != 0, e.st.OwnTiers(en) != 0
	}
	return en.Tiers()&from.Bit != 0, here || en.Tiers()&^from.Bit != 0, here || e.st.OwnTiers(en)&^from.Bit != 0
}

// dropCopyLocked evicts a block from memory, or from a secondary tier.
func (e *Engine) dropCopyLocked(from *state.Secondary, id index.ID, en *index.Entry, g *state.Gone) {
	if from == nil {
		e.st.ApplyLocked(catalog.Leaving{ID: id})
		e.st.Mu.Counters.Evicted++
		e.st.Mu.Counters.EvictedBytes += uint64(en.Size())
		e.Memory.EvictOneLocked(id, en, outcome.ReasonRequest, g)
		return
	}
	from.RemoveLocked(e.st.KeyLocked(id))
	e.st.ApplyLocked(catalog.Refused{ID: id}) // the next write, not the next eviction, copies the block down again
	e.Transfer.ForgetCopyLocked(from, id, en, outcome.ReasonRequest, g)
}
