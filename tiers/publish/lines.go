package publish

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

// Sizes of the text that followers have in common.
const (
	chunkSize  = 64 << 10
	chunkCount = 64
)

// chunk is a piece of that text: whole lines. Its bytes never change once they are there, and its
// array never moves, so readers need no lock.
type chunk struct {
	first uint64 // number of the first event that it could have
	buf   []byte // only its header changes, under the lock of Lines
}

// Lines makes lines of JSON from a log. Its methods may be called in parallel.
type Lines struct {
	log    Log
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // of encoders

	mu struct {
		sync.Mutex
		shared int      // followers that read the common text
		stop   func()   // ends the encoder; nil: there is none
		gen    uint64   // counts encoders: an old one may still be ending
		base   uint64   // number of chunks[0], counted from the first ever
		chunks []*chunk // the newest ones
		next   uint64   // events before this one are in the text
		err    error    // why the encoder ended by itself
		news   chan struct{}
	}
}

// NewLines makes Lines. The caller must close it.
func NewLines(log Log) *Lines {
	l := &Lines{log: log}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.mu.news = make(chan struct{})
	return l
}

// Filter says which events a Follower gets.
type Filter struct {
	Since  uint64        // from this number on; 0: from now on; a future number: a gap first
	Groups []string      // only these; empty: all
	Events []string      // only these, and gaps; empty: all
	As     *event.Viewer // only events that this user may see, and gaps; nil: all
}

// kinds returns the kinds that pass f; nil: all.
func (f *Filter) kinds() ([]event.Kind, error) {
	var list []event.Kind
	for i, name := range f.Events {
		n := len(list)
		for k := event.Stored; k <= event.DirRenamed; k++ {
			if shown(k) && k.String() == name {
				list = append(list, k)
			}
		}
		switch {
		case len(list) > n:
		case name == "gap": // always told
			list = append(list, 0)
		default:
			return nil, &FilterError{
				field: fmt.Sprintf("/events/%d", i),
				err:   fmt.Errorf("events[%d]: no event is called %q: %w", i, block.Shorten(name, block.Shown), block.ErrInvalid),
			}
		}
	}
	return list, nil
}

// FilterError says what is wrong with a Filter. It wraps block.ErrInvalid.
type FilterError struct {
	field string
	err   error
}

// Error returns the reason.
func (e *FilterError) Error() string { return e.err.Error() }

// Unwrap returns the kind of error.
func (e *FilterError) Unwrap() error { return e.err }

// Field returns the wrong part of the Filter, as a JSON Pointer: "/events/1".
func (e *FilterError) Field() string { return e.field }

// Follow begins to follow. It fails with a *FilterError if a filter names unknown events.
func (l *Lines) Follow(f Filter) (*Follower, error) {
	kinds, err := f.kinds()
	if err != nil {
		return nil, err
	}
	next, present := f.Since, l.log.Next()
	var lost []byte
	if next == 0 {
		next = present
	} else if next > present { // a number of an earlier daemon: the events since are not known
		next, lost = present, appendGap(nil, present, 0)
	}
	if len(f.Groups) == 0 && len(kinds) == 0 && f.As == nil && lost == nil {
		shared, err := l.join(next)
		if err != nil {
			return nil, err
		}
		if shared != nil {
			return &Follower{shared: shared}, nil
		}
	}
	own := newOwnReader(l, next)
	own.kinds, own.groups, own.as, own.ready = kinds, slices.Clone(f.Groups), f.As, lost
	return &Follower{own: own}, nil
}

// join adds a reader of the common text, from event next on, and starts the encoder for the first
// reader. It returns nil if the common text does not reach back so far.
func (l *Lines) join(next uint64) (*sharedReader, error) {
	present := l.log.Next()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, block.ErrClosed
	}
	if l.mu.stop != nil && next < l.mu.chunks[0].first {
		return nil, nil
	}
	l.mu.shared++
	if from := min(next, present); l.mu.stop == nil {
		var ctx context.Context
		ctx, l.mu.stop = context.WithCancel(l.ctx)
		l.mu.gen++
		l.mu.base += uint64(len(l.mu.chunks))
		l.mu.chunks, l.mu.next, l.mu.err = nil, from, nil
		l.growLocked(chunkSize)
		l.wg.Add(1)
		go l.encode(ctx, l.mu.gen, from) // ends when the last reader leaves, at Close, or with the log
	}
	last := len(l.mu.chunks) - 1
	r := &sharedReader{lines: l, at: l.mu.base + uint64(last), off: len(l.mu.chunks[last].buf), next: next}
	for ; next < l.mu.next && last >= 0; last-- { // skip what happened meanwhile
		r.at, r.off = l.mu.base+uint64(last), 0
		if l.mu.chunks[last].first <= next {
			break
		}
	}
	return r, nil
}

// leave removes a reader of the common text. With the last reader it ends the encoder.
func (l *Lines) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.shared--
	if l.mu.shared == 0 {
		l.mu.stop()
		l.mu.stop = nil
		l.mu.base += uint64(len(l.mu.chunks))
		l.mu.chunks = nil
	}
}

// Close ends the reading of the log. Followers then fail with block.ErrClosed.
func (l *Lines) Close() {
	l.mu.Lock()
	l.cancel() // under the lock: join starts nothing after this
	l.mu.Unlock()
	l.wg.Wait()
}

// growLocked begins a chunk of at least size bytes, and forgets the oldest one.
func (l *Lines) growLocked(size int) *chunk {
	c := &chunk{first: l.mu.next, buf: make([]byte, 0, max(size, chunkSize))}
	if len(l.mu.chunks) == chunkCount {
		l.mu.chunks = slices.Delete(l.mu.chunks, 0, 1)
		l.mu.base++
	}
	l.mu.chunks = append(l.mu.chunks, c)
	return c
}

// encode reads the log from seq on and appends its lines to the common text.
func (l *Lines) encode(ctx context.Context, gen, seq uint64) {
	defer l.wg.Done()
	events := make([]event.Event, readSize)
	var p pacer
	for {
		p.wait(ctx)
		n, missed, err := l.log.Read(ctx, seq, events)
		p.done(n)
		if !l.add(gen, seq, events[:n], missed, err) {
			return
		}
		seq += missed + uint64(n)
	}
}

// add appends the lines of events, and wakes the readers. It returns false if the encoder must end.
func (l *Lines) add(gen, seq uint64, events []event.Event, missed uint64, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.gen != gen || l.mu.stop == nil {
		return false
	}
	c := l.mu.chunks[len(l.mu.chunks)-1]
	if missed > 0 && err == nil {
		if cap(c.buf)-len(c.buf) < 256 {
			c = l.growLocked(chunkSize)
		}
		c.buf = appendGap(c.buf, seq+missed, missed)
		l.mu.next = seq + missed
	}
	for i := range events {
		ev := &events[i]
		if shown(ev.Kind) {
			if bound := lineBound(ev); cap(c.buf)-len(c.buf) < bound {
				c = l.growLocked(bound)
			}
			c.buf = appendLine(c.buf, ev)
		}
		l.mu.next = ev.Seq + 1
	}
	l.mu.err = err
	close(l.mu.news)
	l.mu.news = make(chan struct{})
	return err == nil
}
