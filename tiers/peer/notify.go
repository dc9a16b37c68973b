package peer

import (
	"slices"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
)

const (
	// checkTime is how often held keys are looked at.
	checkTime = time.Second
	// askRate is how many watched names are asked about in a second at most. A thousand nodes that do so send each node
	// as many questions, some 300 KB.
	askRate = 4096
	// maxDue bounds the watched names that wait for that.
	maxDue = 10 * askRate
)

// notifier reports losses of watched keys to the Host. One goroutine runs it, of its own because the index reports them
// during calls of the engine.
//
//	the index reports that a hash has no holder, and for a key of it
//	  there is a hint                   not lost: the index is asked again when the hint has lapsed
//	  this node does not know the hash  other nodes are asked: an answer is a hint
//	  it is being loaded, likewise      the load finds out: the index is asked again later
//	  else                              lost
//
// A key that no other node has is lost, and so is one for which there is no room in line. The engine then forgets the name
// if it has nothing of it, and asks when somebody looks it up again. If the owners of a key do not answer, they are asked
// again when an answer would have lapsed.
type notifier struct {
	t    *Tier
	held map[uint64]time.Time // when the index is to be asked again about a hash
	due  []uint64             // about these other nodes are to be asked, in this order

	budget int       // names that may be asked about
	filled time.Time // when budget was last askRate

	tick <-chan time.Time // nil: not set
	stop func()
}

// runNotifier ends with t.ctx.
func (t *Tier) runNotifier() {
	n := &notifier{t: t, held: make(map[uint64]time.Time), budget: askRate, filled: t.now(), stop: func() {}}
	defer func() { n.stop() }()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.watches.wake:
			for _, hash := range t.watches.take() {
				n.settle(hash, false)
			}
		case <-n.tick:
			n.tick = nil
			n.again()
		}
		n.ask()
		if n.tick == nil && len(n.held)+len(n.due) > 0 {
			n.tick, n.stop = t.after(hintTimer, checkTime)
		}
	}
}

// again asks the index about the hashes for which it is time. It reports those without a holder anew.
func (n *notifier) again() {
	now := n.t.now()
	for hash, at := range n.held {
		if !at.After(now) {
			delete(n.held, hash)
			n.watch(hash)
		}
	}
}

// watch asks the index about a hash whose keys are still watched.
func (n *notifier) watch(hash uint64) {
	w := &n.t.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.keys[hash]) > 0 {
		n.t.node.watch(hash)
	}
}

// ask asks other nodes about hashes in line, as many as may be.
func (n *notifier) ask() {
	t := n.t
	if now := t.now(); now.Sub(n.filled) >= time.Second {
		n.budget, n.filled = askRate, now
	}
	if len(n.due) == 0 || n.budget == 0 {
		return
	}
	batch := n.due[:min(len(n.due), n.budget)]
	n.due = n.due[len(batch):]
	n.budget -= len(batch)
	open := map[uint64]bool{} // nobody has answered
	if paths := t.watches.paths(batch); len(paths) > 0 {
		answered := t.ask(t.ctx, paths)
		for _, path := range paths {
			if !answered[path] {
				open[location.HashPath(path)] = true
			}
		}
	}
	if t.ctx.Err() != nil {
		return
	}
	for _, hash := range batch {
		if open[hash] {
			n.held[hash] = t.now().Add(answerTime)
		} else {
			n.settle(hash, true)
		}
	}
}

// settle reports the keys of a hash to the Host, or sees to it that the others are looked at again. asked: other nodes
// have been asked.
func (n *notifier) settle(hash uint64, asked bool) {
	t, w := n.t, &n.t.watches
	knows := t.node.knows(hash)
	var at time.Time
	var gone []block.Key
	ask := false
	w.mu.Lock()
	kept := slices.DeleteFunc(w.mu.keys[hash], func(key block.Key) bool {
		until, held := n.heldUntil(key.Path(), hash, knows, asked)
		switch {
		case held:
			at = later(at, until)
		case !knows && !asked && len(n.due) < maxDue:
			ask = true
		default:
			gone = append(gone, key)
			return true
		}
		return false
	})
	if len(kept) == 0 {
		delete(w.mu.keys, hash)
	} else {
		w.mu.keys[hash] = kept
	}
	w.mu.Unlock()
	switch {
	case ask:
		n.due = append(n.due, hash)
	case len(kept) > 0:
		n.held[hash] = at
	}
	for _, key := range gone {
		t.lost(key, block.ErrUnavailable)
	}
}

// heldUntil reports whether a key is not lost although the index said so, and when the index is to be asked again.
func (n *notifier) heldUntil(path string, hash uint64, knows, asked bool) (until time.Time, held bool) {
	t, now := n.t, n.t.now()
	if t.hints.any() {
		var few [8]hint
		grave := t.node.buried(hash)
		for _, h := range t.hints.get(path, now, few[:0]) {
			if h.kind == offered {
				h.until = now.Add(checkTime)
			}
			if t.stands(&h, grave) {
				until, held = later(until, h.until), true
			}
		}
	}
	if held || knows && !asked {
		return until, held
	}
	var buf [8]holder
	if len(t.node.locate(path, buf[:0])) > 0 {
		return now, true // since it was reported the index has learned of a holder
	}
	return now.Add(checkTime), t.loading.has(path)
}

// loadTable has the paths of which a load is under way, and of how many. Its lock is a leaf.
type loadTable struct {
	mu struct {
		sync.Mutex
		count map[string]int
	}
}

// add counts n more loads of each of the pieces; n is 1 or -1.
func (x *loadTable) add(pieces []*piece, n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.count == nil {
		x.mu.count = make(map[string]int)
	}
	for _, p := range pieces {
		if x.mu.count[p.path] += n; x.mu.count[p.path] == 0 {
			delete(x.mu.count, p.path)
		}
	}
}

func (x *loadTable) has(path string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.count[path] > 0
}
