package query

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// prefetchReply is the answer to a prefetch.
type prefetchReply struct {
	Results                         string
	Done, Total                     int
	Bytes                           int64
	InMemory                        int `json:"in_memory"`
	Loaded, Absent, Pending, Failed int
	Errors                          []struct{ Path, Error string }
}

// prefetch returns the last line of an answer.
func prefetch(t *testing.T, s *Service, request string) prefetchReply {
	t.Helper()
	return decode[prefetchReply](t, answerOf(t, func(out *bytes.Buffer) { s.Prefetch(t.Context(), nil, []byte(request), out) }))
}

// TestPrefetch shows what is told of each block, and of blocks of several ranks (A42).
func TestPrefetch(t *testing.T) {
	s, e := newService(t, map[string]names.Place{
		"g/m": inMemory, "g/d": onDisk, "g/p": atPeer, "g/w": pending,
		"r0/a": inMemory, "r1/a": inMemory, "r0/b": onDisk, "r1/b": inMemory, "r0/c": inMemory, "r0/e": pending, "r1/e": onDisk, "r0/f": inMemory,
	})
	e.failing = map[string]error{"g/bad": errors.New("no luck"), "r1/f": errors.New("gone")}
	for _, c := range []struct{ request, results, rest string }{
		{`{"group": "g", "hashes": ["m", "d", "p", "w", "none", "bad"], "request": "r5"}`, "mllw.!", "6 6 200 1 2 1 1 1 [{g/bad no luck}]"},
		{`{"keys": ["g/m", "g/d"], "progress": false}`, "ml", "2 2 100 1 1 0 0 0 []"},
		{`{"keys": ["g/m", "g/bad", "g/bad"], "progress": true}`, "m!!", "3 3 0 1 0 0 0 2 [{g/bad no luck} {g/bad no luck}]"},
		{`{"template": "r{rank}/{hash}", "hashes": ["a", "b", "c", "e", "f"], "ranks": 2}`, "ml.w!", "5 5 200 1 1 1 1 1 [{r1/f gone}]"},
		{`{"template": "{hash:0:9}", "hashes": ["a"]}`, ".", "1 1 0 0 0 1 0 0 []"},
		{`{"keys": []}`, "", "0 0 0 0 0 0 0 0 []"},
	} {
		a := prefetch(t, s, c.request)
		rest := fmt.Sprint(a.Done, a.Total, a.Bytes, a.InMemory, a.Loaded, a.Absent, a.Pending, a.Failed, a.Errors)
		if a.Results != c.results || rest != c.rest {
			t.Errorf("%s: got %q %s, want %q %s", c.request, a.Results, rest, c.results, c.rest)
		}
		if strings.Contains(c.request, "r5") && e.mu.request != "r5" {
			t.Errorf("request %q", e.mu.request)
		}
	}
}

// TestPrefetchErrors shows that the errors of requests are those of query, and that only so many
// errors of blocks are listed.
func TestPrefetchErrors(t *testing.T) {
	s, e := newService(t, nil)
	for _, c := range []struct{ request, field, want string }{
		{`{}`, "", "neither keys nor hashes are there"},
		{`{"op": "exists", "keys": []}`, "/op", "op: there is no such member"},
		{`{"keys": [], "lease": true}`, "/lease", "lease: there is no such member"},
		{`{"keys": ["a", ".."]}`, "/keys/1", `keys[1]: "..": a path may not have "." or ".." in it`},
		{`{"keys": ["a"], "progress": 1}`, "/progress", "progress: got number, want bool"},
		{`{"hashes": ["a"], "template": "{hash}{"}`, "/template", "template: the { at byte 6 is not closed"},
	} {
		got := decode[failure](t, answerOf(t, func(out *bytes.Buffer) { s.Prefetch(t.Context(), nil, []byte(c.request), out) }))
		if got != (failure{c.want, c.field}) {
			t.Errorf("%s: got %q %q, want %q %q", c.request, got.Field, got.Error, c.field, c.want)
		}
	}
	e.failing = map[string]error{}
	keys := hashList(1000)
	for _, k := range keys {
		e.failing[k] = errors.New("no luck")
	}
	if a := prefetch(t, s, `{"keys": `+list(keys)+`}`); a.Failed != 1000 || len(a.Errors) != maxPrefetchErrors || a.Errors[99].Path != keys[99] {
		t.Errorf("%d failed, %d errors", a.Failed, len(a.Errors))
	}
}

// TestPrefetchMany shows that a request of more than the engine is given at a time is done in order,
// and its results are at the right places.
func TestPrefetchMany(t *testing.T) {
	n := maxFiles*2 + 10
	blocks := map[string]names.Place{"g/" + fmt.Sprint(maxFiles+1): onDisk, "g/" + fmt.Sprint(n-1): inMemory}
	s, e := newService(t, blocks)
	hashes := make([]string, n)
	for i := range hashes {
		hashes[i] = fmt.Sprint(i)
	}
	next := 0
	e.before = func(path string) {
		if path != "g/"+hashes[next] {
			t.Errorf("%s at position %d", path, next)
		}
		next++
	}
	a := prefetch(t, s, `{"group": "g", "progress": true, "hashes": `+list(hashes)+`}`)
	if a.Done != n || a.Loaded != 1 || a.InMemory != 1 || a.Results[maxFiles+1] != 'l' || a.Results[n-1] != 'm' {
		t.Errorf("%d done, %d loaded", a.Done, a.Loaded)
	}
}

// TestProgress shows that lines come while blocks are loaded, that they tell what is done, and
// that closing ends the work.
func TestProgress(t *testing.T) {
	s, e := newService(t, map[string]names.Place{"a": onDisk, "b": onDisk, "c": onDisk})
	told := make(chan struct{})
	e.before = func(path string) {
		if path == "c" { // the first two are done: there is something to tell
			select {
			case <-told:
			case <-time.After(30 * time.Second):
				t.Error("no progress is told")
			}
		}
	}
	r, w := io.Pipe()
	finished := make(chan struct{})
	go func() { // ends with Prefetch
		defer close(finished)
		s.Prefetch(t.Context(), nil, []byte(`{"keys": ["a", "b", "c"], "progress": true}`), w)
		w.Close()
	}()
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if line == `{"done": 1, "total": 3, "bytes": 100}`+"\n" { // it was time for a line between the two
		line, err = lines.ReadString('\n')
	}
	if err != nil || line != `{"done": 2, "total": 3, "bytes": 200}`+"\n" {
		t.Errorf("got %q, %v", line, err)
	}
	close(told)
	rest, err := io.ReadAll(lines)
	<-finished
	if err != nil || !strings.HasPrefix(string(rest), `{"results": "lll", "done": 3, "total": 3, "bytes": 300, `) {
		t.Errorf("got %q, %v", rest, err)
	}
}

// TestPrefetchCancel shows that nothing is begun after the reader has gone, whether that is seen by
// the context or by a write.
func TestPrefetchCancel(t *testing.T) {
	s, e := newService(t, map[string]names.Place{"a": onDisk, "b": onDisk, "c": onDisk})
	ctx, cancel := context.WithCancel(t.Context())
	e.before = func(path string) {
		if path == "b" {
			cancel()
		}
	}
	var out bytes.Buffer
	s.Prefetch(ctx, nil, []byte(`{"keys": ["a", "b", "c"]}`), &out)
	if a := decode[prefetchReply](t, out.String()); a.Results != "l!!" || a.Errors[0].Error != "context canceled" {
		t.Errorf("got %+v", a)
	}

	// The engine goes on until it is told to stop, which only the failed write does.
	r, w := io.Pipe()
	r.Close()
	stuck := &stuckEngine{fakeEngine: e, stopped: make(chan struct{})}
	s, err := New(Options{Engine: stuck})
	must(t, err)
	s.Prefetch(t.Context(), nil, []byte(`{"keys": ["a", "b", "c"], "progress": true}`), w)
	select {
	case <-stuck.stopped:
	default:
		t.Error("returned before the engine did")
	}
}

// stuckEngine loads one block, and waits with the others until it is told to stop.
type stuckEngine struct {
	*fakeEngine
	stopped chan struct{}
}

func (e *stuckEngine) Prefetch(ctx context.Context, r transfer.PrefetchRequest) {
	defer close(e.stopped)
	r.Done(0, transfer.PrefetchResult{Outcome: transfer.PrefetchLoaded})
	<-ctx.Done()
	for i := range r.Paths[1:] {
		r.Done(i+1, transfer.PrefetchResult{Err: ctx.Err()})
	}
}
