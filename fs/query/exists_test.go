package query

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
)

// TestExists shows the answer for each way to name blocks and each state (A15, A26, C22).
func TestExists(t *testing.T) {
	s, _ := newService(t, map[string]names.Place{
		"g0/aa": inMemory, "g0/bb": onDisk, "g0/cc": atPeer, "g0/dd": pending, "g0/ee": late,
		"m_r0/abc/de_g0/abcdef.bin": inMemory, "m_r1/abc/de_g0/abcdef.bin": onDisk,
		"m_r0/abc/de_g0/abcdex.bin": inMemory,
		"m_r0/abc/de_g0/abcdew.bin": pending, "m_r1/abc/de_g0/abcdew.bin": inMemory,
		"top": inMemory, "a/b/c": onDisk, "g0/.x": inMemory, "g0/a/b": inMemory, "g0/é": inMemory, "g0/\"q\"": inMemory,
	})
	const vllm = `"template": "m_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin", "group": "0", "ranks": 2`
	long := strings.Repeat("n", 300)
	for _, c := range []struct{ request, states, rest string }{
		{`{"op": "exists", "group": "g0", "hashes": ["aa", "bb", "cc", "dd", "ee", "ff"]}`, "mdpwl.", "3 1 1 1 3"},
		{`{"op": "exists", "hashes": ["aa", "ff"], "group": "g0"}`, "m.", "1 0 0 1 1"},
		{`{"hashes": ["ff", "aa"], "group": "g0", "template": "{group}/{hash}", "op": "exists"}`, ".m", "1 0 0 1 0"},
		{`{"op": "exists", "keys": ["g0/aa", "top", "a/b/c", "nowhere"]}`, "mmd.", "3 0 0 1 3"},
		{`{"op": "exists", "hashes": ["top", "nowhere"]}`, "m.", "1 0 0 1 1"},
		{`{"op": "exists", "hashes": ["abcdef", "abcdex", "abcdew", "ab"], ` + vllm + `}`, "d.w.", "1 1 0 2 1"},
		{`{"op": "exists", "hashes": [".x", "a/b", "\u00e9", "é", "\"q\""], "group": "g0"}`, "mmmmm", "5 0 0 0 5"},
		{`{"op": "exists", "hashes": ["` + long + `"], "group": "g0"}`, ".", "0 0 0 1 0"},
		{`{"op": "exists", "keys": ["` + strings.Repeat("n/", 3000) + `n"]}`, ".", "0 0 0 1 0"},
		{`{"op": "exists", "hashes": ["aa"], "group": "` + strings.Repeat("n", 5000) + `"}`, ".", "0 0 0 1 0"},
		{`{"op": "exists", "keys": [], "request": "r", "lease": false, "promote": true, "deadline_ms": 7, "ranks": 1}`, "", "0 0 0 0 0"},
		{`{"op": "exists", "hashes": []}`, "", "0 0 0 0 0"},
		{` { "op" : "exists" , "hashes" : [ "aa" , "bb" ] , "group" : "g0" } ` + "\n", "md", "2 0 0 0 2"},
	} {
		t.Run(c.request[:min(len(c.request), 80)], func(t *testing.T) {
			a := decode[struct {
				Op, States                          string
				Hits, Pending, Late, Misses, Prefix int
			}](t, ask(t, s, c.request))
			rest := fmt.Sprint(a.Hits, a.Pending, a.Late, a.Misses, a.Prefix)
			if a.Op != "exists" || a.States != c.states || rest != c.rest {
				t.Errorf("got %q %s, want %q %s", a.States, rest, c.states, c.rest)
			}
		})
	}
}

// TestExistsBatches shows that many names are asked for in batches, whatever the ranks (A41), and
// that the ranks are those of the batch's blocks.
func TestExistsBatches(t *testing.T) {
	blocks := map[string]names.Place{}
	hashes := hashList(3000)
	want := make([]byte, len(hashes))
	for i, h := range hashes {
		want[i] = "md."[i%3]
		for rank := range 3 {
			if i%3 == 1 && rank == 1 {
				blocks[fmt.Sprintf("r%d/%s", rank, h)] = onDisk
			} else if i%3 != 2 || rank != 2 {
				blocks[fmt.Sprintf("r%d/%s", rank, h)] = inMemory
			}
		}
	}
	s, e := newService(t, blocks)
	got := ask(t, s, `{"op": "exists", "template": "r{rank}/{hash}", "ranks": 3, "promote": true, "hashes": `+list(hashes)+`}`)
	if !strings.Contains(got, `"`+string(want)+`"`) {
		t.Errorf("got %s, want %s", got, want)
	}
	if e.mu.names != 9000 || e.mu.largest != batch || e.mu.calls != 9 {
		t.Errorf("%d calls for %d names, of at most %d", e.mu.calls, e.mu.names, e.mu.largest)
	}
	if len(e.mu.hinted) != 3000 || e.mu.hinted[0] != "r0/"+hashes[1] || e.mu.hinted[1] != "r1/"+hashes[1] {
		t.Errorf("hinted %d: %q", len(e.mu.hinted), e.mu.hinted[:2])
	}
	e.mu.names = 0
	ask(t, s, `{"op": "exists", "template": "{hash}", "ranks": 3, "hashes": ["a", "b"]}`)
	if e.mu.names != 2 {
		t.Errorf("asked for %d names of ranks that have none of their own", e.mu.names)
	}
}

// TestGarbage shows that a request makes none for each of its keys (A41).
func TestGarbage(t *testing.T) {
	s, _ := newService(t, nil)
	hashes := list(hashList(10_000))
	raw := make([]byte, 32*10_000)
	for i := range raw {
		raw[i] = byte(i / 32)
	}
	for name, request := range map[string][]byte{
		"exists":      []byte(`{"op": "exists", "group": "g0", "hashes": ` + hashes + `}`),
		"template":    []byte(`{"op": "exists", "group": "g0", "template": "` + vllmTemplate + `", "hashes": ` + hashes + `}`),
		"longest_hit": []byte(`{"op": "longest_hit", "spec": "gemma", "hashes": ` + hashes + `}`),
		"binary":      binaryForm{op: binaryExists, size: 32, count: 10_000, hashes: raw}.encode(),
	} {
		n := testing.AllocsPerRun(20, func() { s.Query(t.Context(), nil, request, io.Discard) })
		if n > 200 { // under the race detector scratches are not always used again
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestCancel shows that a request whose reader has gone is not continued.
func TestCancel(t *testing.T) {
	s, e := newService(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	e.asked = func(names.PresenceOptions) { cancel() }
	for _, request := range []string{
		`{"op": "exists", "hashes": ` + list(hashList(5000)) + `}`,
		`{"op": "longest_hit", "spec": "gemma", "hashes": ` + list(hashList(5000)) + `}`,
	} {
		got := answerOf(t, func(out *bytes.Buffer) { s.Query(ctx, nil, []byte(request), out) })
		if got != `{"error": "the request was cancelled"}` {
			t.Errorf("got %s", got)
		}
	}
	if e.mu.calls > 1 {
		t.Errorf("asked %d times", e.mu.calls)
	}
}

// TestNew shows that all specs are checked, and all reasons told (C4).
func TestNew(t *testing.T) {
	_, err := New(Options{Engine: &fakeEngine{}, Specs: map[string]hybrid.Spec{
		"good": gemma, "": gemma, "bad": {HashBlockSize: 16, Groups: []hybrid.Group{{Kind: "none", BlockSize: 16}}},
		"worse": {HashBlockSize: 3, Groups: []hybrid.Group{{Kind: hybrid.Full, BlockSize: 16, Name: "../x"}}},
	}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`specs: ""`, `specs.bad: `, `"none"`, `specs.worse: `, `"../x"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: does not tell %s", err, want)
		}
	}
}
