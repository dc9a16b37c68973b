package query

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
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

// TestExistsOptions shows that the options of a request reach the engine.
func TestExistsOptions(t *testing.T) {
	s, e := newService(t, map[string]names.Place{"g/a": inMemory, "g/b": onDisk, "g/c": atPeer, "g/d": late, "g/e": pending})
	const head = `{"op": "exists", "keys": ["g/c", "g/a", "g/b", "g/d", "g/e", "g/f"]`
	for _, c := range []struct {
		more   string
		want   names.PresenceOptions
		hinted []string
	}{
		{``, names.PresenceOptions{Lease: true}, nil},
		{`, "lease": false`, names.PresenceOptions{}, nil},
		{`, "deadline_ms": 20`, names.PresenceOptions{Lease: true, Deadline: 20 * time.Millisecond}, nil},
		{`, "deadline_ms": 0`, names.PresenceOptions{Lease: true, Deadline: -1}, nil},
		{`, "promote": true, "request": "r7"`, names.PresenceOptions{Lease: true, Request: "r7"}, []string{"g/c", "g/b"}},
		{`, "promote": false`, names.PresenceOptions{Lease: true}, nil},
	} {
		e.mu.hinted = nil
		ask(t, s, head+c.more+"}")
		if e.mu.options != c.want || !slices.Equal(e.mu.hinted, c.hinted) {
			t.Errorf("%s: got %+v, hinted %q, want %+v, %q", c.more, e.mu.options, e.mu.hinted, c.want, c.hinted)
		}
	}
	if e.mu.request != "r7" {
		t.Errorf("request %q", e.mu.request)
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

// TestPartsOfRequestsAreForgotten shows that answers do not depend on requests before, though their
// scratch is used again.
func TestPartsOfRequestsAreForgotten(t *testing.T) {
	s, _ := newService(t, map[string]names.Place{"g/a": inMemory})
	first := ask(t, s, `{"op": "exists", "hashes": ["a", "b"], "group": "g"}`)
	for range 3 {
		ask(t, s, `{"op": "exists", "keys": ["x", "y", "z"], "lease": false, "promote": true, "request": "r", "deadline_ms": 3}`)
		ask(t, s, `{"op": "exists", "hashes": [1]}`)
		ask(t, s, `{"op": "longest_hit", "spec": {"hash_block_size": 1, "groups": []}, "hashes": ["\u0041"]}`)
		if again := ask(t, s, `{"op": "exists", "hashes": ["a", "b"], "group": "g"}`); again != first {
			t.Errorf("got %s, first %s", again, first)
		}
	}
}

// TestTiers shows which character stands for which tier.
func TestTiers(t *testing.T) {
	blocks := map[string]names.Place{}
	for i, tier := range []uint8{0, 1, 2, 3, 31, 200} {
		blocks[fmt.Sprint("k", i)] = names.Place{Presence: driver.Hit, Tier: tier}
	}
	s, err := New(Options{Engine: &fakeEngine{blocks: blocks}, Tiers: []string{"memory", "peer0", "nvme", "peer"}})
	must(t, err)
	got := ask(t, s, `{"op": "exists", "keys": ["k0", "k1", "k2", "k3", "k4", "k5"]}`)
	if !strings.Contains(got, `"mpdpdd"`) {
		t.Errorf("got %s", got)
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
