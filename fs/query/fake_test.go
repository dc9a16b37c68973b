package query

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeEngine is an Engine with a map for blocks. It keeps the rules of the contract: it answers at
// once, and keeps no path.
type fakeEngine struct {
	blocks   map[string]names.Place
	verdicts map[string]outcome.Verdict
	failing  map[string]error              // what Prefetch fails with
	before   func(path string)             // called before Prefetch decides on a path
	asked    func(o names.PresenceOptions) // called by Presences

	mu struct {
		sync.Mutex
		calls, names int // of Presences
		largest      int // call of Presences
		hinted       []string
		hints        int    // calls of Hint
		request      string // of the last Hint or Prefetch
		options      names.PresenceOptions
	}
}

func (e *fakeEngine) Presences(paths [][]byte, o names.PresenceOptions, out []names.Place) {
	if e.asked != nil {
		e.asked(o)
	}
	for i, path := range paths {
		out[i] = e.blocks[string(path)]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.calls++
	e.mu.names += len(paths)
	e.mu.largest = max(e.mu.largest, len(paths))
	e.mu.options = o
}

func (e *fakeEngine) Prefetch(ctx context.Context, r transfer.PrefetchRequest) {
	e.mu.Lock()
	e.mu.request = r.Request
	e.mu.Unlock()
	for i, path := range r.Paths {
		if e.before != nil {
			e.before(string(path))
		}
		r.Done(i, e.prefetchOne(ctx, string(path)))
	}
}

func (e *fakeEngine) prefetchOne(ctx context.Context, path string) transfer.PrefetchResult {
	if err := ctx.Err(); err != nil {
		return transfer.PrefetchResult{Err: err}
	}
	if err, ok := e.failing[path]; ok {
		return transfer.PrefetchResult{Err: err}
	}
	place := e.blocks[path]
	switch {
	case place.Presence == driver.Pending:
		return transfer.PrefetchResult{Outcome: transfer.PrefetchPending}
	case place.Presence == driver.Miss:
		return transfer.PrefetchResult{Outcome: transfer.PrefetchAbsent}
	case place.Tier == 0:
		return transfer.PrefetchResult{Outcome: transfer.PrefetchInMemory}
	}
	return transfer.PrefetchResult{Outcome: transfer.PrefetchLoaded, Bytes: 100}
}

// ReleaseRequest implements Engine: the number is the length of the name.
func (e *fakeEngine) ReleaseRequest(_ *event.Viewer, request string) int { return len(request) }

func (e *fakeEngine) Hint(_ *event.Viewer, request string, paths [][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.request = request
	e.mu.hints++
	for _, path := range paths {
		e.mu.hinted = append(e.mu.hinted, string(path))
	}
}

func (e *fakeEngine) Why(path string) outcome.Verdict {
	if v, ok := e.verdicts[path]; ok {
		return v
	}
	return outcome.Verdict{Kind: outcome.NeverStored, Text: "nothing is known of it"}
}

var (
	inMemory = names.Place{Presence: driver.Hit}
	onDisk   = names.Place{Presence: driver.Hit, Tier: 1}
	atPeer   = names.Place{Presence: driver.Hit, Tier: 2}
	pending  = names.Place{Presence: driver.Pending}
	late     = names.Place{Late: true}
)

// gemma is a full group and a window of two blocks.
var gemma = hybrid.Spec{HashBlockSize: 16, Groups: []hybrid.Group{
	{Kind: hybrid.Full, BlockSize: 16},
	{Kind: hybrid.SlidingWindow, BlockSize: 16, Window: 32},
}}

// newService returns a Service with the spec "gemma" over blocks.
func newService(t testing.TB, blocks map[string]names.Place) (*Service, *fakeEngine) {
	t.Helper()
	e := &fakeEngine{blocks: blocks}
	s, err := New(Options{Engine: e, Tiers: []string{"memory", "disk", "peer"}, Specs: map[string]hybrid.Spec{"gemma": gemma}})
	must(t, err)
	return s, e
}

// ask returns the answer of .kvfs/query without the end of its line.
func ask(t testing.TB, s *Service, request string) string {
	t.Helper()
	return answerOf(t, func(out *bytes.Buffer) { s.Query(t.Context(), nil, []byte(request), out) })
}

// answerOf checks that an answer is one JSON object a line, and returns the last.
func answerOf(t testing.TB, do func(out *bytes.Buffer)) string {
	t.Helper()
	var out bytes.Buffer
	do(&out)
	text, ok := strings.CutSuffix(out.String(), "\n")
	if !ok {
		t.Fatalf("answer %q has no end", out.String())
	}
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Fatalf("not JSON: %s", line)
		}
	}
	return lines[len(lines)-1]
}

// decode decodes an answer into what it is.
func decode[T any](t testing.TB, answer string) (v T) {
	t.Helper()
	in := json.NewDecoder(strings.NewReader(answer))
	in.DisallowUnknownFields()
	if err := in.Decode(&v); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return v
}

// list writes strings as a JSON list.
func list[T any](items []T) string {
	text, err := json.Marshal(items)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// hashList returns n hashes.
func hashList(n int) []string {
	hashes := make([]string, n)
	for i := range hashes {
		hashes[i] = fmt.Sprintf("%064x", i+1)
	}
	return hashes
}
