package accesslog

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/event"
)

// TestLine shows that each line is one line, whatever is in the names, and that Parse reads what Append wrote.
func TestLine(t *testing.T) {
	at := time.Date(2026, 11, 25, 23, 7, 50, 123456000, time.UTC)
	for _, l := range []Line{
		{Time: at, Reads: "passthrough"},
		{Time: at, Dropped: 17},
		{Time: at, Op: "GETATTR", Result: "OK"},
		{Time: at, UID: 1000, GID: 4294967295, PID: 77, Op: "RENAME", Path: "g/a b\n\"=\xff", To: "g/é\x1b[0m\\", Size: 1 << 40, Result: "OK", Took: 1500 * time.Microsecond},
		{Time: at, PID: 1, Op: "OPEN", Path: "g/a", Writes: true, Result: "OK"},
		{Time: at, PID: 1, Op: "READ", Path: "g/a", Size: 4096, Offset: 1 << 33, Result: "EIO", Took: 12 * time.Second},
	} {
		text := string(l.Append(nil))
		if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") || strings.Contains(text, "\x1b") || !utf8.ValidString(text) {
			t.Errorf("%q is no plain line", text)
		}
		if got, err := Parse(text); err != nil || got != l {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, l)
		}
	}
	for _, bad := range []string{"", "x", "time=yesterday op=OPEN", `op=OPEN path="x`, "op=OPEN uid=-1", "dropped=many", "a=1"} {
		if l, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", bad, l)
		}
	}
}

// FuzzParse: no text makes Parse panic, and what it reads it reads again.
func FuzzParse(f *testing.F) {
	f.Add(string((&Line{Op: "RENAME", Path: "a \xff", To: "b", Result: "OK"}).Append(nil)))
	f.Add(`op="\x`)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse(text)
		if err != nil || l.Op == "" || strings.ContainsAny(l.Op+l.Result, " =\"\n") || l.Took < 0 || l.Took > time.Hour || l.Dropped > 0 || l.Reads != "" || l.Result == "" {
			return
		}
		l.Took = l.Took.Round(time.Microsecond)
		if again, err := Parse(string(l.Append(nil))); err != nil || again != l {
			t.Errorf("%+v is read as %+v, %v", l, again, err)
		}
	})
}

// stream is a reader of the file.
type stream struct {
	from io.Reader
	text []byte // read and not yet returned
	end  context.CancelFunc
}

// open follows the log as a viewer, up to its first line. end or the test ends it.
func open(t *testing.T, l *Log, as *event.Viewer) *stream {
	t.Helper()
	f := l.File(func() (string, error) { return "passthrough", nil }, nil, nil)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Open(as)(ctx, nil, w) }() // ends with ctx
	t.Cleanup(func() { cancel(); r.Close(); <-done })
	s := &stream{from: r, end: func() { cancel(); r.Close(); <-done }}
	if first := s.line(t); first.Reads != "passthrough" {
		t.Fatalf("the first line is %+v", first)
	}
	return s
}

// line returns the next line.
func (s *stream) line(t *testing.T) Line {
	t.Helper()
	buf := make([]byte, 64<<10)
	for {
		if text, rest, ok := strings.Cut(string(s.text), "\n"); ok {
			s.text = []byte(rest)
			l, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		n, err := s.from.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		s.text = append(s.text, buf[:n]...)
	}
}

// TestSlow shows that a reader that does not read costs bounded memory and stops nobody, and that it then learns how
// many lines it has missed, at the place where they are missing. Another reader gets all.
func TestSlow(t *testing.T) {
	var read atomic.Bool
	l := New(read.Store)
	slow := open(t, l, nil)
	const many = 100_000
	for i := range many {
		l.Add(&Line{Op: "OPEN", Path: fmt.Sprint(i)})
	}
	l.mu.Lock()
	if held := len(l.mu.readers[0].lines); held > maxBehind {
		t.Errorf("%d bytes wait, %d is the limit", held, maxBehind)
	}
	l.mu.Unlock()
	next, missed := 0, uint64(0)
	for next+int(missed) < many {
		switch line := slow.line(t); {
		case line.Dropped > 0:
			missed += line.Dropped
		case line.Path != fmt.Sprint(next+int(missed)):
			t.Fatalf("line %+v after %d lines and %d missed", line, next, missed)
		default:
			next++
		}
	}
	if missed == 0 || next == 0 {
		t.Errorf("%d lines, %d missed: want both", next, missed)
	}
	l.Add(&Line{Op: "OPEN", Path: "last"})
	if line := slow.line(t); line.Path != "last" {
		t.Errorf("after all that: %+v", line)
	}
}

// TestViewers shows that a user sees the own requests only, and that nobody counts as a reader who has gone.
func TestViewers(t *testing.T) {
	var read atomic.Bool
	l := New(read.Store)
	all, own := open(t, l, nil), open(t, l, &event.Viewer{UID: 7})
	if !read.Load() {
		t.Error("nobody reads")
	}
	for _, uid := range []uint32{0, 8, 7} {
		l.Add(&Line{Op: "OPEN", UID: uid})
	}
	for _, want := range []uint32{0, 8, 7} {
		if got := all.line(t).UID; got != want {
			t.Errorf("root sees uid %d, want %d", got, want)
		}
	}
	if got := own.line(t).UID; got != 7 {
		t.Errorf("uid 7 sees uid %d", got)
	}
	all.end()
	if !read.Load() {
		t.Error("the last reader has gone early")
	}
	own.end()
	if read.Load() {
		t.Error("readers are left")
	}
}
