package publish

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

// Follower reads the lines. It is not for use in parallel.
type Follower struct {
	shared *sharedReader // without a filter, as long as it keeps up
	own    *ownReader    // otherwise
	rest   []byte        // of a line that was longer than the buffer
	closed bool
}

// Read fills buf with as many whole lines as there are and fit, and waits for the first one. A line
// longer than buf comes in parts. Read fails with ctx's error, or block.ErrClosed.
func (f *Follower) Read(ctx context.Context, buf []byte) (int, error) {
	switch {
	case f.closed:
		return 0, block.ErrClosed
	case len(buf) == 0:
		return 0, nil
	case len(f.rest) > 0:
		n := copy(buf, f.rest)
		f.rest = f.rest[n:]
		return n, nil
	}
	text, err := f.text(ctx)
	if err != nil {
		return 0, err
	}
	if len(text) > len(buf) {
		if i := bytes.LastIndexByte(text[:len(buf)], '\n'); i >= 0 {
			text = text[:i+1]
		} else {
			line := text[:bytes.IndexByte(text, '\n')+1]
			f.took(line)
			n := copy(buf, line)
			f.rest = line[n:]
			return n, nil
		}
	}
	f.took(text)
	return copy(buf, text), nil
}

// text waits for lines and returns consecutive ones. They are not taken yet. A follower that falls
// out of the common text continues from the log, which reaches further back.
func (f *Follower) text(ctx context.Context) ([]byte, error) {
	if f.shared != nil {
		text, err := f.shared.text(ctx)
		if !errors.Is(err, errBehind) {
			return text, err
		}
		f.own = newOwnReader(f.shared.lines, f.shared.next)
		f.shared.lines.leave()
		f.shared = nil
	}
	return f.own.text(ctx)
}

// took takes the first lines of text's result.
func (f *Follower) took(lines []byte) {
	if f.shared != nil {
		f.shared.took(lines)
	} else {
		f.own.ready = f.own.ready[len(lines):]
	}
}

// Close ends following. It may be called again.
func (f *Follower) Close() {
	if !f.closed && f.shared != nil {
		f.shared.lines.leave()
	}
	f.closed = true
}

// sharedReader reads the text that followers have in common.
type sharedReader struct {
	lines *Lines
	at    uint64 // number of the chunk
	off   int    // bytes of it that are taken
	next  uint64 // number of the next event
}

// errBehind says that the common text has lost the reader's next lines.
var errBehind = errors.New("behind the shared text")

func (s *sharedReader) text(ctx context.Context) ([]byte, error) {
	for {
		text, news, err := s.look()
		if err != nil {
			return nil, err
		}
		if text = s.skip(text); len(text) > 0 {
			return text, nil
		}
		if news == nil {
			continue // that chunk is finished
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.lines.ctx.Done():
			return nil, block.ErrClosed
		}
	}
}

// look returns the lines at the reader's position, or a channel that is closed when there are more.
func (s *sharedReader) look() ([]byte, <-chan struct{}, error) {
	l := s.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil { // under the lock: Close changes the encoder after this
		return nil, nil, block.ErrClosed
	}
	if s.at < l.mu.base {
		if l.mu.chunks[0].first > s.next {
			return nil, nil, errBehind
		}
		s.at, s.off = l.mu.base, 0
	}
	c := l.mu.chunks[s.at-l.mu.base]
	if s.off < len(c.buf) {
		return c.buf[s.off:len(c.buf):len(c.buf)], nil, nil
	}
	if s.at+1 < l.mu.base+uint64(len(l.mu.chunks)) {
		s.at, s.off = s.at+1, 0
		return nil, nil, nil
	}
	return nil, l.mu.news, l.mu.err
}

// skip leaves out lines of events from before the reader began.
func (s *sharedReader) skip(text []byte) []byte {
	for len(text) > 0 && following(text) <= s.next {
		n := bytes.IndexByte(text, '\n') + 1
		text = text[n:]
		s.off += n
	}
	return text
}

func (s *sharedReader) took(lines []byte) {
	last := bytes.LastIndexByte(lines[:len(lines)-1], '\n') + 1
	s.next = following(lines[last:])
	s.off += len(lines)
}

// ownReader encodes the events that pass its filter, or all if it has none.
type ownReader struct {
	lines  *Lines
	next   uint64
	kinds  []event.Kind
	groups []string
	as     *event.Viewer
	events []event.Event
	pace   pacer
	buf    []byte // reused
	ready  []byte // the part of buf that is not taken yet
}

// newOwnReader returns a reader without a filter, from event next on.
func newOwnReader(l *Lines, next uint64) *ownReader {
	return &ownReader{lines: l, next: next, events: make([]event.Event, readSize)}
}

func (o *ownReader) text(ctx context.Context) ([]byte, error) {
	if len(o.ready) > 0 {
		return o.ready, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.lines.ctx, cancel)()
	for len(o.ready) == 0 {
		o.pace.wait(ctx)
		n, missed, err := o.lines.log.Read(ctx, o.next, o.events)
		o.pace.done(n)
		if o.lines.ctx.Err() != nil {
			return nil, block.ErrClosed
		}
		if err != nil {
			return nil, err
		}
		o.buf = o.buf[:0]
		if missed > 0 {
			o.buf = appendGap(o.buf, o.next+missed, missed)
		}
		for i := range o.events[:n] {
			if ev := &o.events[i]; o.wants(ev) {
				o.buf = appendLine(o.buf, ev)
			}
		}
		o.next += missed + uint64(n)
		o.ready = o.buf
	}
	return o.ready, nil
}

func (o *ownReader) wants(ev *event.Event) bool {
	return shown(ev.Kind) && ev.Shows(o.as) &&
		(len(o.kinds) == 0 || slices.Contains(o.kinds, ev.Kind)) &&
		(len(o.groups) == 0 || o.of(ev, ev.Key) || o.of(ev, ev.From))
}

// of reports whether a name in an event, for a rename the old or the new one, belongs to one of the
// groups. A directory at the root is a group.
func (o *ownReader) of(ev *event.Event, key block.Key) bool {
	group := string(key.Group)
	if group == "" && ev.Kind == event.DirRenamed {
		group = string(key.Hash)
	}
	return key != block.Key{} && slices.Contains(o.groups, group)
}
