package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// fakeEvictor answers requests to evict by do, and keeps them.
type fakeEvictor struct {
	do func(context.Context, tiers.EvictRequest) (tiers.EvictReply, error)
	mu struct {
		sync.Mutex
		got []tiers.EvictRequest
	}
}

// EvictFrom implements Evictor.
func (f *fakeEvictor) EvictFrom(ctx context.Context, r tiers.EvictRequest) (tiers.EvictReply, error) {
	f.mu.Lock()
	f.mu.got = append(f.mu.got, r)
	f.mu.Unlock()
	if f.do == nil {
		return tiers.EvictReply{Blocks: int64(len(r.Paths))}, nil
	}
	return f.do(ctx, r)
}

// requests returns what was asked.
func (f *fakeEvictor) requests() []tiers.EvictRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mu.got)
}

// newEvictRequest opens a dialogue with the evictor.
func newEvictRequest(t *testing.T, f *fakeEvictor) *conversation {
	t.Helper()
	var wg sync.WaitGroup
	r := newConversation(t.Context(), &wg, new(requestMemory), Evict(f, func(context.Context) {}, nil).Open(nil))
	t.Cleanup(func() { r.close(); wg.Wait() })
	return r
}

// mustWrite writes a request in pieces of n bytes.
func mustWrite(t *testing.T, r *conversation, request string, n int) {
	t.Helper()
	for piece := range slices.Chunk([]byte(request), n) {
		if got, st := r.write(piece); st != nil || got != len(piece) {
			t.Fatalf("write: got %d, %v", got, st)
		}
	}
}

// readAll reads to the end in pieces of n bytes.
func readAll(t *testing.T, r *conversation, n int) string {
	t.Helper()
	var all []byte
	for {
		buf := make([]byte, n)
		got, st := r.read(nil, false, buf)
		if st != nil {
			t.Fatalf("read: %v", st)
		}
		if got == 0 {
			return string(all)
		}
		all = append(all, buf[:got]...)
	}
}

// awaitHandler waits until the handler of the last request has returned.
func awaitHandler(r *conversation) {
	for {
		r.mu.Lock()
		if !r.mu.running {
			r.mu.Unlock()
			return
		}
		changed := r.waitLocked()
		r.mu.Unlock()
		<-changed
	}
}

// TestRequestAnswer shows a dialogue: requests and answers in pieces of any
// size, each request run once, by the first read, and as the engine wants it.
func TestRequestAnswer(t *testing.T) {
	f := &fakeEvictor{do: func(_ context.Context, r tiers.EvictRequest) (tiers.EvictReply, error) {
		if r.Tier == "none" {
			return tiers.EvictReply{}, errors.New("no such tier")
		}
		return tiers.EvictReply{Blocks: 2, Bytes: 4096, KeptN: 7, Kept: []tiers.EvictKept{{Path: "g/\u00e4", Reason: outcome.ReasonOnlyCopy}}}, nil
	}}
	r := newEvictRequest(t, f)
	const yes = `{"blocks":2,"bytes":4096,"kept_total":7,"kept":[{"path":"g/ä","reason":"only copy"}]}` + "\n"
	for i, c := range []struct {
		request, want string
		ask           tiers.EvictRequest
	}{
		{`{"tier":"memory","paths":["g/a","h"],"force":true}` + "\n", yes, tiers.EvictRequest{Tier: "memory", Paths: []string{"g/a", "h"}, Force: true}},
		{"{\n  \"all\": true,\n  \"tier\": \"disk\"\n}\n\n", yes, tiers.EvictRequest{Tier: "disk", All: true}},
		{`{"tier":"none"}`, `{"error":"no such tier"}` + "\n", tiers.EvictRequest{Tier: "none"}},
	} {
		for _, n := range []int{1, 7, 1 << 20} {
			mustWrite(t, r, c.request, n)
			before := len(f.requests())
			if got := readAll(t, r, n); got != c.want {
				t.Errorf("request %d in pieces of %d: got %q, want %q", i, n, got, c.want)
			}
			asked := f.requests()[before:]
			if len(asked) != 1 || !reflect.DeepEqual(asked[0], c.ask) {
				t.Errorf("request %d: asked %+v, want once %+v", i, asked, c.ask)
			}
		}
	}
	// What is not read to its end makes way for the next.
	mustWrite(t, r, `{"tier":"memory"}`, 100)
	if n, st := r.read(nil, false, make([]byte, 3)); n != 3 || st != nil {
		t.Fatalf("got %d, %v", n, st)
	}
	awaitHandler(r) // until then the next request is refused
	mustWrite(t, r, `{"tier":"none"}`, 100)
	if got := readAll(t, r, 100); got != `{"error":"no such tier"}`+"\n" {
		t.Errorf("after an unfinished answer: got %q", got)
	}
}

// TestRequestErrors shows that a wrong request gets an answer that says where it
// is wrong, and asks nothing of the engine; the next one works.
func TestRequestErrors(t *testing.T) {
	f := &fakeEvictor{}
	r := newEvictRequest(t, f)
	if got := readAll(t, r, 100); !strings.Contains(got, `{"error":"nothing was asked`) {
		t.Errorf("read before any request: got %q", got)
	}
	long := strings.Repeat("x", 8<<20)
	for _, c := range []struct{ request, field, want string }{
		{"\n", "", "the request is empty"},
		{`{"tier":"memory"`, "", "the request ends too early, after 16 bytes"},
		{`{"tier" "memory"}`, "/tier", "tier: invalid character"},
		{"evict all", "", "invalid character"},
		{`{"tier":"memory","pathz":1}`, "/pathz", "pathz: there is no such member"},
		{`{"tier":"memory","Tier":"disk"}`, "/Tier", "Tier: there is no such member"},
		{`{"a/b~c":1}`, "/a~1b~0c", "a/b~c: there is no such member"},
		{`{"` + long + `":1}`, "/" + long[:strict.MaxPointer-1], long[:64] + "...: there is no such member"},
		{`{"tier":"memory","tier":"disk"}`, "/tier", "tier: is there twice"},
		{`{"tier":7}`, "/tier", "tier: got number, want string"},
		{`{"tier":null}`, "/tier", "tier: got null, want string"},
		{`{"all":"yes"}`, "/all", "all: got string, want bool"},
		{`{"paths":"g/a"}`, "/paths", "paths: got string, want list"},
		{`{"paths":["g/a",{}]}`, "/paths/1", "paths[1]: got object, want string"},
		{`{"paths":[null]}`, "/paths/0", "paths[0]: got null, want string"},
		{`{"paths":["a","b",["c"]],"tier":1}`, "/paths/2", "paths[2]: got list, want string"},
		{`["memory"]`, "", "got list, want object"},
		{`{"all":true} {"all":true}`, "", "there is more than one value"},
		{`{"all":true}]`, "", "invalid character"},
		{"{\"tier\":\"a\x00b\"}", "/tier", "tier: invalid character"},
		{`{"paths":["` + strings.Repeat("x", maxRequest) + `"]}`, "", fmt.Sprintf("the request has more than %d bytes", maxRequest)},
	} {
		mustWrite(t, r, c.request, 1<<20)
		answer := readAll(t, r, 4096)
		var e failure
		if err := json.Unmarshal([]byte(answer), &e); err != nil || !strings.HasPrefix(e.Error, c.want) || e.Field != c.field {
			t.Errorf("%.40q: got %q, want %q at %q", c.request, answer, c.want, c.field)
		}
	}
	if asked := f.requests(); len(asked) != 0 {
		t.Errorf("the engine was asked %+v", asked)
	}
	largest := `{"paths":["` + strings.Repeat("x", maxRequest-len(`{"paths":[""]}`)) + `"]}`
	mustWrite(t, r, largest, 1<<20)
	if got := readAll(t, r, 4096); got != `{"blocks":1,"bytes":0,"kept_total":0,"kept":[]}`+"\n" {
		t.Errorf("a request of the largest size: got %q", got)
	}
}

// pointedError is an error that knows what is to blame.
type pointedError struct{ field, text string }

// Error implements error.
func (e pointedError) Error() string { return e.text }

// Field implements fieldError.
func (e pointedError) Field() string { return e.field }

// TestStreamRequest shows what a stream is asked, an empty request included, how a request is
// refused, and that the error of its function tells the field to blame and is no longer than may be.
func TestStreamRequest(t *testing.T) {
	type question struct {
		Since uint64   `json:"since"`
		Names []string `json:"names,omitempty"`
		Maybe *bool
	}
	yes := true
	umlauts := strings.Repeat("\u00e4", 1<<20)
	for _, c := range []struct {
		request     string
		asked       *question // nil: nothing
		fails       error
		error, path string
	}{
		{request: ``, asked: &question{}},
		{request: `{}`, asked: &question{}},
		{request: `{"since": 18446744073709551615, "names": [], "Maybe": true}`, asked: &question{1<<64 - 1, []string{}, &yes}},
		{request: `{"names": ["a", "\u00e4"], "Maybe": null}`, asked: &question{Names: []string{"a", "\u00e4"}}},
		{request: `null`, error: "got null, want object"},
		{request: `{"since": "now"}`, error: "since: got string, want number", path: "/since"},
		{request: `{"since": -1}`, error: "since: -1 is not a whole number", path: "/since"},
		{request: `{"since": 1.5}`, error: "since: 1.5 is not a whole number", path: "/since"},
		{request: `{"since": ` + strings.Repeat("9", 1<<20) + `}`, path: "/since",
			error: "since: " + strings.Repeat("9", 64) + "... is too large"},
		{request: `{"Maybe": 1}`, error: "Maybe: got number, want bool", path: "/Maybe"},
		{request: `{}`, asked: &question{}, fails: errors.New("no"), error: "no"},
		{request: `{}`, asked: &question{}, fails: fmt.Errorf("no: %w", pointedError{"/names/1", "x"}), error: "no: x", path: "/names/1"},
		{request: `{}`, asked: &question{}, fails: pointedError{"/" + umlauts, umlauts},
			error: umlauts[:1020] + "...", path: "/" + umlauts[:1022]},
		{request: `{}`, asked: &question{}, fails: pointedError{"/" + strings.Repeat("~1", 1<<20), "half"},
			error: "half", path: "/" + strings.Repeat("~1", 511)},
	} {
		var asked *question
		var answer bytes.Buffer
		StreamJSON(func(_ context.Context, q question, _ io.Writer) error {
			asked = &q
			return c.fails
		})(t.Context(), []byte(c.request), &answer)
		if !reflect.DeepEqual(asked, c.asked) {
			t.Errorf("%.60s: asked %+v, want %+v", c.request, asked, c.asked)
		}
		var got failure
		if answer.Len() > 0 {
			if err := json.Unmarshal(answer.Bytes(), &got); err != nil {
				t.Errorf("%.60s: %v in %.200q", c.request, err, answer.String())
			}
		}
		if got != (failure{c.error, c.path}) {
			t.Errorf("%.60s: got %.200q at %.200q, want %.200q at %.200q", c.request, got.Error, got.Field, c.error, c.path)
		}
	}
}

// TestRequestWaits shows what happens while a request runs: an interrupted reader
// leaves at once, comes back and gets the answer of the one run; a writer is told
// to wait; other readers share the answer.
func TestRequestWaits(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	f := &fakeEvictor{do: func(ctx context.Context, _ tiers.EvictRequest) (tiers.EvictReply, error) {
		close(began)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return tiers.EvictReply{Blocks: 5}, ctx.Err()
	}}
	r := newEvictRequest(t, f)
	mustWrite(t, r, `{"tier":"memory"}`, 100)
	interrupt := make(chan struct{})
	type result struct {
		text string
		st   error
	}
	results := make(chan result)
	reader := func(cancel chan struct{}) { // ends with its read
		buf := make([]byte, 4096)
		n, st := r.read(cancel, false, buf)
		results <- result{string(buf[:n]), st}
	}
	go reader(interrupt)
	<-began
	close(interrupt)
	if got := <-results; got.st != unix.EINTR {
		t.Errorf("interrupted: got %v", got)
	}
	if n, st := r.write([]byte("{}")); n != 0 || st != unix.EBUSY {
		t.Errorf("write: got %d, %v", n, st)
	}
	go reader(nil)
	go reader(nil)
	close(release)
	const want = `{"blocks":5,"bytes":0,"kept_total":0,"kept":[]}` + "\n"
	if a, b := <-results, <-results; a.text+b.text != want || a.st != nil || b.st != nil {
		t.Errorf("two readers got %v and %v", a, b)
	}
	if n := len(f.requests()); n != 1 {
		t.Errorf("the request ran %d times", n)
	}
}

// TestRequestClose shows that the close of the descriptor, and the end of the
// mount, cancel what runs, and let waiting readers go.
func TestRequestClose(t *testing.T) {
	for name, end := range map[string]func(r *conversation, mount context.CancelFunc){
		"close":   func(r *conversation, _ context.CancelFunc) { r.close() },
		"unmount": func(_ *conversation, mount context.CancelFunc) { mount() },
	} {
		ctx, mount := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		began := make(chan struct{})
		f := &fakeEvictor{do: func(ctx context.Context, _ tiers.EvictRequest) (tiers.EvictReply, error) {
			close(began)
			<-ctx.Done()
			return tiers.EvictReply{}, ctx.Err()
		}}
		r := newConversation(ctx, &wg, new(requestMemory), Evict(f, func(context.Context) {}, nil).Open(nil))
		mustWrite(t, r, `{"tier":"memory"}`, 100)
		done := make(chan error)
		go func() { // ends with its read
			_, st := r.read(nil, false, make([]byte, 100))
			done <- st
		}()
		<-began
		end(r, mount)
		if st := <-done; st != unix.EIO && st != nil { // OK: the answer, an error, was faster
			t.Errorf("%s: the reader got %v", name, st)
		}
		wg.Wait()
		mount()
	}
}
