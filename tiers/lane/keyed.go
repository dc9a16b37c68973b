package lane

import (
	"context"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Update gives the block From of a tier the name To, which may be the same, and new attributes.
type Update struct {
	From, To block.Key
	Attrs    *driver.Attrs
	ID       index.ID // its entry
}

// keyedOp is a removal of Update.From; or, with Attrs, an update; or one of barrier and tree.
type keyedOp struct {
	Update
	barrier func() // to be called when all before it is done

	tree *Tree // updates of all that is below a directory
	next int   // in tree
}

// keyedBatch bounds the removals that are done together.
const keyedBatch = 256

// RemoveLocked has the tier drop a block.
func (l *Lane) RemoveLocked(key block.Key) { l.queueKeyedLocked(keyedOp{Update: Update{From: key}}) }

// UpdateLocked has the tier follow a rename or a change of attributes.
func (l *Lane) UpdateLocked(u Update) { l.queueKeyedLocked(keyedOp{Update: u}) }

func (l *Lane) queueKeyedLocked(op keyedOp) {
	l.keyed.push(op)
	l.keyedIn++
	l.count(&op, 1)
	l.wakeUp()
}

// AfterKeyedLocked has fn called when all removals and updates that were queued have been done. It is not called
// after Close.
func (l *Lane) AfterKeyedLocked(fn func()) {
	l.keyed.push(keyedOp{barrier: fn})
	l.wakeUp()
}

// expandKeyedLocked reports whether removals, updates or barriers are queued, and puts the updates that a Tree
// stands for in its place if that is the first of them.
func (l *Lane) expandKeyedLocked() bool {
	for l.keyed.len() > 0 && l.keyed.front().tree != nil {
		l.expandTreeLocked()
	}
	return l.keyed.len() > 0
}

// nextKeyedLocked takes what expandKeyedLocked has found from the queue and returns what begins it: an update, or removals
// up to one whose key is being stored.
func (l *Lane) nextKeyedLocked() (begin func()) {
	if barrier := l.keyed.front().barrier; barrier != nil {
		l.keyed.pop()
		return barrier
	}
	var ops []keyedOp
	for l.keyed.len() > 0 && len(ops) < keyedBatch {
		op := l.keyed.front()
		_, busy := l.busy[op.From]
		_, busyTo := l.busy[op.To]
		alone := op.Attrs != nil || op.barrier != nil || op.tree != nil
		if busy || alone && (busyTo || len(ops) > 0) {
			break
		}
		ops = append(ops, l.keyed.pop())
		if alone {
			break
		}
	}
	if len(ops) == 0 {
		return nil
	}
	return func() { l.doKeyed(ops) }
}

// doKeyed does removals, or one update.
func (l *Lane) doKeyed(ops []keyedOp) {
	if ops[0].Attrs != nil {
		l.update(ops[0].Update)
	} else {
		keys := make([]block.Key, len(ops))
		for i := range ops {
			keys[i] = ops[i].From
		}
		l.o.Tier.Remove(keys)
	}
	l.o.Lock.Lock()
	for i := range ops {
		l.keyedOut++
		l.count(&ops[i], -1)
	}
	l.o.Lock.Unlock()
}

// update gives a block another name or other attributes in the tier.
func (l *Lane) update(u Update) {
	if l.recorder != nil && l.recorder.Update(u.From, u.To, u.Attrs) {
		return
	}
	if l.recorder == nil {
		l.o.Tier.Remove([]block.Key{u.From, u.To})
	}
	l.o.Owner.Restore(u)
}

// dispatchKeyed does removals and updates when nothing else is begun any more, waiting for the stores under way
// that they follow. False: none is left, or ctx is done.
func (l *Lane) dispatchKeyed(ctx context.Context) bool {
	var begin func()
	l.o.Lock.Lock()
	left := l.expandKeyedLocked()
	if left {
		begin = l.nextKeyedLocked()
	}
	l.o.Lock.Unlock()
	switch {
	case !left:
		return false
	case begin != nil:
		begin()
		return true
	}
	select {
	case <-l.wake:
		return true
	case <-ctx.Done():
		return false
	}
}
