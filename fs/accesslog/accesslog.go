// Package accesslog has the control file .kvfs/accesslog: a line for each request of the kernel, while somebody reads.
//
// A line is logfmt: fields key=value with spaces between them; paths are quoted as in Go.
package accesslog

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers/event"
)

// maxBehind bounds the lines that wait for one reader, in bytes. More lines are dropped, and counted.
const maxBehind = 1 << 20

// Log gives the lines to its readers. Its methods may be called in parallel.
type Log struct {
	read func(bool) // called when the first reader has come, and when the last has gone

	mu struct {
		sync.Mutex // leaf
		readers    []*reader
	}
}

// New makes a log. It calls read when it gets its first reader, and when it has lost the last one. read must not call
// the log.
func New(read func(bool)) *Log { return &Log{read: read} }

// reader is one open descriptor.
type reader struct {
	as   *event.Viewer // nil: sees all
	news chan struct{} // has a value if lines wait

	lines   []byte // guarded by Log.mu, as the next
	dropped uint64 // lines that came after the last one in lines
}

// Add gives a line to the readers that may see it. It never waits for them.
func (l *Log) Add(line *Line) {
	var buf [512]byte
	text := line.Append(buf[:0])
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.readers {
		switch {
		case r.as != nil && r.as.UID != line.UID:
			continue
		case r.dropped > 0 || len(r.lines)+len(text) > maxBehind:
			r.dropped++
			continue
		}
		r.lines = append(r.lines, text...)
		select {
		case r.news <- struct{}{}:
		default:
		}
	}
}

// take returns the lines that wait for r. It keeps spare for the next ones.
func (l *Log) take(r *reader, spare []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := r.lines
	if r.dropped > 0 {
		lines = (&Line{Time: time.Now(), Dropped: r.dropped}).Append(lines)
	}
	r.lines, r.dropped = spare[:0], 0
	return lines
}

// join adds a reader.
func (l *Log) join(as *event.Viewer) *reader {
	r := &reader{as: as, news: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.readers = append(l.mu.readers, r)
	l.read(len(l.mu.readers) > 0)
	return r
}

// leave removes a reader.
func (l *Log) leave(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.readers = slices.DeleteFunc(l.mu.readers, func(o *reader) bool { return o == r })
	l.read(len(l.mu.readers) > 0)
}

// File returns the control file. Its first line says how bytes are read, and that all requests from then on follow.
// reads returns that, or the reason why there are no lines. Users other than root and that of the daemon see the
// requests of their own uid.
func (l *Log) File(reads func() (string, error), users, groups []uint32) control.File {
	follow := func(ctx context.Context, as *event.Viewer, answer io.Writer) error {
		path, err := reads()
		if err != nil {
			return err
		}
		r := l.join(as)
		defer l.leave(r)
		text := (&Line{Time: time.Now(), Reads: path}).Append(nil)
		for {
			if _, err := answer.Write(text); err != nil {
				return nil // the reader has gone
			}
			select {
			case <-r.news:
				text = l.take(r, text)
			case <-ctx.Done():
				return nil
			}
		}
	}
	return control.File{Name: "accesslog", Stream: true, Users: users, Groups: groups, Open: func(as *event.Viewer) control.Dialogue {
		return control.StreamJSON(func(ctx context.Context, _ struct{}, answer io.Writer) error { return follow(ctx, as, answer) })
	}}
}
