package trace

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/fs/accesslog"
)

// recordLines makes a trace of lines of an access log, and returns its file.
func recordLines(t *testing.T, lines ...accesslog.Line) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace.gz")
	w, err := create(name)
	if err != nil {
		t.Fatal(err)
	}
	r := newRecorder(w)
	r.start = time.Unix(100, 0)
	r.keep(w.enc.Encode(Head{Version: version, Start: r.start}))
	for i := range lines {
		l := &lines[i]
		if l.Result == "" {
			l.Result = "OK"
		}
		l.Time = r.start.Add(time.Duration(i) * time.Millisecond)
		r.add(l)
	}
	r.end()
	if err := w.close(); err != nil || r.failed != nil {
		t.Fatal(err, r.failed)
	}
	return name
}

// opsOf reads a trace. In the texts a name is the letter of its order.
func opsOf(t *testing.T, name string) (texts []string) {
	t.Helper()
	r, err := open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.file.Close()
	letters := map[string]string{}
	letter := func(path string) string {
		parts := strings.Split(path, "/")
		for i, p := range parts {
			if _, ok := letters[p]; !ok && p != "" {
				letters[p] = string(rune('A' + len(letters)))
			}
			parts[i] = letters[p]
		}
		return strings.Join(parts, "/")
	}
	for {
		op, err := r.next()
		if err == io.EOF {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%d: %s %s", op.Worker, op.Do, letter(op.Path))
		if op.To != "" {
			text += " " + letter(op.To)
		}
		if op.Size > 0 {
			text += fmt.Sprint(" ", op.Size)
		}
		if op.Miss {
			text += " miss"
		}
		texts = append(texts, text+op.Failed)
	}
}

// TestRecord shows which operations follow from the requests of the kernel, that names are not in a trace, and that
// equal names stay equal.
func TestRecord(t *testing.T) {
	name := recordLines(t,
		// A block, written as engines do; its bytes do not reach the daemon.
		accesslog.Line{PID: 7, Op: "LOOKUP", Path: "secret", Size: 4096},
		accesslog.Line{PID: 7, Op: "LOOKUP", Path: "secret/hash.tmp", Result: "ENOENT"},
		accesslog.Line{PID: 7, Op: "CREATE", Path: "secret/hash.tmp"},
		accesslog.Line{Op: "RELEASE", Path: "secret/hash.tmp", Size: 1000},
		accesslog.Line{PID: 7, Op: "LOOKUP", Path: "secret/hash", Result: "ENOENT"},
		accesslog.Line{PID: 7, Op: "RENAME", Path: "secret/hash.tmp", To: "secret/hash", Size: 1000},
		// A block, written in place by a shell.
		accesslog.Line{PID: 8, Op: "CREATE", Path: "secret/other"},
		accesslog.Line{PID: 8, Op: "FLUSH", Path: "secret/other"},
		accesslog.Line{PID: 8, Op: "FLUSH", Path: "secret/other", Size: 2000},
		accesslog.Line{Op: "RELEASE", Path: "secret/other", Size: 2000},
		// The same block, written anew by another process.
		accesslog.Line{PID: 9, Op: "LOOKUP", Path: "secret/other", Size: 2000},
		accesslog.Line{PID: 9, Op: "OPEN", Path: "secret/other", Size: 2000, Writes: true, Result: "ESTALE"},
		accesslog.Line{PID: 9, Op: "OPEN", Path: "secret/other", Size: 2000, Writes: true},
		accesslog.Line{PID: 9, Op: "FLUSH", Path: "secret/other", Size: 2500},
		// A read, a stat, a miss, an error.
		accesslog.Line{PID: 8, Op: "LOOKUP", Path: "secret/hash", Size: 1000},
		accesslog.Line{PID: 8, Op: "OPEN", Path: "secret/hash", Size: 1000},
		accesslog.Line{PID: 8, Op: "LOOKUP", Path: "secret/hash", Size: 1000},
		accesslog.Line{PID: 8, Op: "GETATTR", Path: "secret/hash", Size: 1000},
		accesslog.Line{PID: 8, Op: "LOOKUP", Path: "secret/none", Result: "ENOENT"},
		accesslog.Line{PID: 9, Op: "OPEN", Path: "secret/hash", Result: "EMFILE"},
		// A rename, a removal, a temporary file that was given up.
		accesslog.Line{PID: 7, Op: "RENAME", Path: "secret/hash", To: "secret/moved", Size: 1000},
		accesslog.Line{PID: 7, Op: "UNLINK", Path: "secret/moved"},
		accesslog.Line{PID: 7, Op: "CREATE", Path: "secret/hash.tmp"},
		accesslog.Line{PID: 7, Op: "UNLINK", Path: "secret/hash.tmp"},
		accesslog.Line{Dropped: 12},
	)
	want := []string{
		"0: write A/B 1000", "1: write A/C 2000", "2: write A/C 2500", "1: read A/B 1000", "1: lookup A/B 1000", "2: read A/BEMFILE",
		"0: rename A/B A/D 1000", "0: remove A/D", "0: lost  12", "1: lookup A/E miss",
	}
	if got := opsOf(t, name); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	again := recordLines(t, accesslog.Line{PID: 7, Op: "UNLINK", Path: "secret/hash"})
	r, err := open(again)
	if err != nil {
		t.Fatal(err)
	}
	defer r.file.Close()
	op, err := r.next()
	if err != nil || strings.Contains(op.Path, "secret") || strings.Contains(op.Path, "hash") {
		t.Errorf("%q, %v: want it without names", op.Path, err)
	}
	first, err := open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer first.file.Close()
	if other, _ := first.next(); other.Path == op.Path {
		t.Error("two traces have the same key")
	}
}

// writeTrace writes a trace that is not compressed.
func writeTrace(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

const head = `{"kvfs_trace":1,"start":"2026-11-25T23:00:00Z","reads":"passthrough"}`

// names lists all that is below dir.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		list = append(list, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestReplay shows that a replay does what the trace says, counts it, removes what it wrote and nothing else, and with
// Fill has the blocks that were there before.
func TestReplay(t *testing.T) {
	file := writeTrace(t, head,
		`{"t":0,"w":0,"do":"read","p":"g/before","s":3000}`,
		`{"t":1,"w":0,"do":"lookup","p":"g/none","miss":true}`,
		`{"t":2,"w":0,"do":"write","p":"g/a","s":5000000}`,
		`{"t":3,"w":0,"do":"read","p":"g/a","s":5000000}`,
		`{"t":4,"w":0,"do":"rename","p":"g/a","to":"g/b"}`,
		`{"t":5,"w":0,"do":"remove","p":"mine/block"}`,
		`{"t":6,"w":0,"do":"rename","p":"mine/block","to":"g/c"}`,
		`{"t":7,"w":0,"do":"write","p":"mine/block","s":1}`,
		`{"t":8,"w":0,"do":"write","p":"g/left","s":70}`,
		`{"do":"lost","s":3}`)
	for _, c := range []struct {
		replay   Replay
		hits     float64
		misses   int64
		leftOver []string
	}{
		{Replay{}, 1. / 3, 1, []string{".", "mine", "mine/block"}},
		{Replay{Speed: 10, Fill: true}, 2. / 3, 0, []string{".", "mine", "mine/block"}},
		{Replay{Keep: true}, 1. / 3, 1, []string{".", "g", "g/b", "g/left", "mine", "mine/block"}},
	} {
		dir := t.TempDir()
		os.Mkdir(filepath.Join(dir, "mine"), 0o755)
		os.WriteFile(filepath.Join(dir, "mine/block"), []byte("keep"), 0o644)
		r, err := c.replay.Run(t.Context(), file, dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "mine/block")); err != nil || string(got) != "keep" {
			t.Errorf("the file of another: %q, %v", got, err)
		}
		if got := names(t, dir); !slices.Equal(got, c.leftOver) {
			t.Errorf("%+v leaves %q, want %q", c.replay, got, c.leftOver)
		}
		of := map[string]OpReport{}
		for _, o := range r.Ops {
			of[o.Do] = o
		}
		if r.HitRatio == nil || *r.HitRatio != c.hits || r.RecordedRatio == nil || *r.RecordedRatio != 2./3 || r.Lost != 3 || r.RecordedSeconds != 8e-6 {
			t.Errorf("%+v: %+v", c.replay, r)
		}
		if o := of[Read]; o.Count != 2 || o.Misses != c.misses || o.Bytes != 5000000+3000*(1-c.misses) {
			t.Errorf("%+v: reads %+v", c.replay, o)
		}
		if o := of[Write]; o.Count != 3 || o.Bytes != 5000000+70 && o.Bytes != 5000000+71 || o.Errors["EEXIST"] != 1 || o.Max < o.P50 || o.P50 <= 0 {
			t.Errorf("%+v: writes %+v", c.replay, o)
		}
		if rename, remove := of[Rename], of[Remove]; rename.Count != 2 || rename.Misses != 1 || remove.Misses != 1 {
			t.Errorf("%+v: renames %+v, removals %+v", c.replay, rename, remove)
		}
		var text strings.Builder
		if err := r.Print(&text); err != nil || !strings.Contains(text.String(), "write: EEXIST 1 times\n") {
			t.Errorf("%v\n%s", err, text.String())
		}
	}
}

// TestReplayCancelled shows that a replay that is interrupted ends at once and leaves nothing.
func TestReplayCancelled(t *testing.T) {
	file := writeTrace(t, head, `{"t":0,"w":0,"do":"write","p":"g/a","s":5}`, `{"t":3600000000,"w":0,"do":"read","p":"g/a","s":5}`)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // ends with the first write
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "g/a")); err == nil {
				cancel()
			}
		}
	}()
	r, err := Replay{Speed: 1}.Run(ctx, file, dir)
	if err != nil || len(r.Ops) != 1 || r.Ops[0].Do != Write {
		t.Errorf("%+v, %v", r, err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("it leaves %q", got)
	}
}

// TestBadTraces shows that a file that is no trace, and one whose paths lead elsewhere, are refused in one line, and
// that a trace that was cut off is played to there.
func TestBadTraces(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{nil, "is not a trace of kvfs: EOF"},
		{[]string{"hello"}, "is not a trace of kvfs"},
		{[]string{`{"kvfs_trace":2}`}, "its version is 2, want 1"},
		{[]string{head, `{"do":"read","p":"../x"}`}, `line 2 of the trace: "../x" is not a path below a mount`},
		{[]string{head, `{"do":"read","p":"/etc/passwd"}`}, "is not a path"},
		{[]string{head, `{"do":"write","p":".kvfs/evict","s":3}`}, "is not a path"},
		{[]string{head, `{"do":"rename","p":"a","to":"a/../../b"}`}, "is not a path"},
		{[]string{head, `{"do":"read"}`}, "is not a path"},
		{[]string{head, `{"do":"dance","p":"a"}`}, `there is no operation "dance"`},
		{[]string{head, `{"do":"write","p":"a","s":-1}`}, "out of range"},
		{[]string{head, `{"do":"write","p":"a","w":-1}`}, "out of range"},
		{[]string{head, `{"do":3}`}, "line 2 of the trace"},
		{[]string{head, `{"do":"read","p":"a"}`, `{"do":"re`}, ""},
	} {
		_, err := Replay{}.Run(t.Context(), writeTrace(t, c.lines...), t.TempDir())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v, want %q", c.lines, err, c.want)
		}
	}
	name := writeTrace(t, head)
	if _, err := create(name); !os.IsExist(err) {
		t.Errorf("a file is replaced: %v", err)
	}
}

// TestSpeed shows which values the flag takes.
func TestSpeed(t *testing.T) {
	for text, want := range map[string]Speed{"1": 1, "0.5": 0.5, "max": 0, "1000000": 1e6, "0": -1, "-2": -1, "NaN": -1, "+Inf": -1, "": -1, "fast": -1} {
		s := Speed(-1)
		if err := s.Set(text); s != want || (err == nil) != (want >= 0) {
			t.Errorf("%q: %v, %v, want %v", text, s, err, want)
		}
	}
}
