package accesslog

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/event"
)

// TestLine shows that each line is one line, whatever is in the names, and has what Append was given.
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
		if got := parse(t, text); got != l {
			t.Errorf("%q says %+v, want %+v", text, got, l)
		}
	}
}

// field matches a field of a line.
var field = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S*)`)

// parse reads a line.
func parse(t testing.TB, text string) (l Line) {
	t.Helper()
	texts := map[string]*string{"op": &l.Op, "path": &l.Path, "to": &l.To, "result": &l.Result, "reads": &l.Reads}
	numbers := map[string]any{"uid": &l.UID, "gid": &l.GID, "pid": &l.PID, "size": &l.Size, "offset": &l.Offset, "dropped": &l.Dropped, "writes": &l.Writes}
	for _, m := range field.FindAllStringSubmatch(text, -1) {
		key, value := m[1], m[2]
		var err error
		switch {
		case key == "time":
			l.Time, err = time.Parse(time.RFC3339Nano, value)
		case key == "seconds":
			l.Took, err = time.ParseDuration(value + "s")
		case numbers[key] != nil:
			_, err = fmt.Sscan(value, numbers[key])
		case strings.HasPrefix(value, `"`):
			*texts[key], err = strconv.Unquote(value)
		default:
			*texts[key] = value
		}
		if err != nil {
			t.Fatalf("%s of the line %q: %v", key, text, err)
		}
	}
	return l
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
			return parse(t, text)
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
