package feed

import (
	"context"
	"errors"
	"sync"
)

const (
	// lookWants bounds the subscribers that share a look.
	lookWants = 64
	// wantBytes bounds the records that are kept for one of them: a subscriber that wants more has a look of its own, and
	// gets the records as they come.
	wantBytes = 4 << 20
)

// look is one pass over all that the node holds, for several subscribers that want parts of it. When a node leaves, many
// others take over a little of its share, and each asks every holder about that.
type look struct {
	wants []*want
	done  chan struct{} // closed at the end
	err   error         // set before that
}

// want is what a subscriber wants of a look, and gets.
type want struct {
	parts, scope Parts
	limit        int // bytes of a batch
	batches      []Batch
	enc          encoder
	bytes        int
	tooMuch      bool // for wantBytes
}

// lookTable has the look that subscribers can still join.
type lookTable struct {
	turn chan struct{} // has an element while no look is under way
	mu   struct {
		sync.Mutex
		next *look
	}
}

func (x *lookTable) init() {
	x.turn = make(chan struct{}, 1)
	x.turn <- struct{}{}
}

// join enters w into the next look. first: the caller has to do it.
func (x *lookTable) join(w *want) (k *look, first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k = x.mu.next
	if k == nil {
		k, first = &look{done: make(chan struct{})}, true
		x.mu.next = k
	}
	if k.wants = append(k.wants, w); len(k.wants) == lookWants {
		x.mu.next = nil
	}
	return k, first
}

// begin ends joining.
func (x *lookTable) begin(k *look) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.next == k {
		x.mu.next = nil
	}
}

// look returns the records in parts and scope that snapshot tells, together with other callers. It fails with the error of ctx
// or of snapshot.
func (l *Log) look(ctx context.Context, parts, scope Parts, snapshot Snapshotter) (*want, error) {
	for {
		w := &want{parts: parts, scope: scope, limit: l.o.BatchBytes}
		k, first := l.looks.join(w)
		if first {
			l.doLook(ctx, k, snapshot)
		}
		select {
		case <-k.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if k.err == nil {
			return w, nil
		}
		if err := ctx.Err(); first || err != nil {
			return nil, errors.Join(err, k.err)
		}
		// whoever did it has gone
	}
}

// doLook does a look when the one before it has ended.
func (l *Log) doLook(ctx context.Context, k *look, snapshot Snapshotter) {
	defer close(k.done)
	defer l.looks.begin(k)
	select {
	case <-l.looks.turn:
		defer func() { l.looks.turn <- struct{}{} }()
	case <-ctx.Done():
		k.err = ctx.Err()
		return
	}
	l.looks.begin(k)
	k.err = snapshot(ctx, func(r *Record) error {
		for _, w := range k.wants {
			if r.Op == Hold && w.parts.Holds(r.Hash) && (w.scope == nil || w.scope.Holds(r.Hash)) && !w.tooMuch {
				w.add(r)
			}
		}
		return nil
	})
}

// add puts a record into the last batch, or a new one.
func (w *want) add(r *Record) {
	if w.bytes > wantBytes {
		w.tooMuch, w.batches = true, nil
		return
	}
	last := len(w.batches) - 1
	if last < 0 || len(w.batches[last].Records)+bound(r) > w.limit {
		w.batches, w.enc = append(w.batches, Batch{}), encoder{}
		last++
	}
	b := &w.batches[last]
	before := len(b.Records)
	b.Records = w.enc.append(b.Records, r)
	b.Count++
	w.bytes += len(b.Records) - before
}
