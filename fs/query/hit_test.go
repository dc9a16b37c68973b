package query

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
)

// hitReply is an answer about groups.
type hitReply struct {
	Op        string
	HitTokens int `json:"hit_tokens"`
	Capped    bool
	Pending   int
	Late      int
	Groups    []struct {
		Name, Load string
		Fetch      []int
		Start, End int
		Store      *string
	}
}

// TestLongestHit shows answers for a model with a full group and a window (C7, C8, C9).
func TestLongestHit(t *testing.T) {
	s, e := newService(t, map[string]names.Place{
		"0/a": inMemory, "0/b": onDisk, "0/c": inMemory, "0/d": pending,
		"1/b": atPeer, "1/c": inMemory, "1/d": late,
		"x/0_a": inMemory, "x/1_a": inMemory, "y/0_a": late,
	})
	const spec = `{"op": "longest_hit", "spec": "gemma", "hashes": ["a", "b", "c", "d"]`
	for _, c := range []struct{ request, want string }{
		{spec + `}`, `{"op": "longest_hit", "hit_tokens": 48, "capped": false, "pending": 1, "late": 0, "groups": [{"name": "0", "load": "111"}, {"name": "1", "load": "011"}]}`},
		{spec + `, "fetch": true}`, `{"op": "longest_hit", "hit_tokens": 48, "capped": false, "pending": 1, "late": 0, "groups": [{"name": "0", "load": "111", "fetch": [0, 1, 2]}, {"name": "1", "load": "011", "fetch": [1, 2]}]}`},
		{spec + `, "fetch": true, "cached": 32}`, `{"op": "longest_hit", "hit_tokens": 48, "capped": false, "pending": 1, "late": 0, "groups": [{"name": "0", "load": "111", "fetch": [2]}, {"name": "1", "load": "011", "fetch": [2]}]}`},
		{spec + `, "fetch": true, "cached": 640}`, `{"op": "longest_hit", "hit_tokens": 48, "capped": false, "pending": 1, "late": 0, "groups": [{"name": "0", "load": "111", "fetch": []}, {"name": "1", "load": "011", "fetch": []}]}`},
		{spec + `, "num_tokens": 0}`, `{"op": "longest_hit", "hit_tokens": 0, "capped": false, "pending": 0, "late": 0, "groups": [{"name": "0", "load": ""}, {"name": "1", "load": ""}]}`},
		{spec + `, "template": "none/{group}{hash}"}`, `{"op": "longest_hit", "hit_tokens": 0, "capped": false, "pending": 0, "late": 0, "groups": [{"name": "0", "load": ""}, {"name": "1", "load": ""}]}`},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "num_tokens": 17, "template": "x/{group}_{hash}"}`,
			`{"op": "longest_hit", "hit_tokens": 16, "capped": false, "pending": 0, "late": 0, "groups": [{"name": "0", "load": "1"}, {"name": "1", "load": "1"}]}`},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "template": "x/{group}_{hash}", "fetch": true}`,
			`{"op": "longest_hit", "hit_tokens": 0, "capped": false, "pending": 0, "late": 0, "groups": [{"name": "0", "load": "", "fetch": []}, {"name": "1", "load": "", "fetch": []}]}`},
		{`{"op": "longest_hit", "spec": {"hash_block_size": 16, "groups": [{"name": "x/1", "kind": "swa", "window": 2, "block_size": 16}]}, "hashes": ["z", "a"], "template": "{group}_{hash}", "num_tokens": 40}`,
			`{"op": "longest_hit", "hit_tokens": 32, "capped": false, "pending": 0, "late": 0, "groups": [{"name": "x/1", "load": "01"}]}`},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "num_tokens": 17, "template": "y/{group}_{hash}"}`,
			`{"op": "longest_hit", "hit_tokens": 0, "capped": false, "pending": 0, "late": 1, "groups": [{"name": "0", "load": ""}, {"name": "1", "load": ""}]}`},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": []}`, `{"op": "longest_hit", "hit_tokens": 0, "capped": false, "pending": 0, "late": 0, "groups": [{"name": "0", "load": ""}, {"name": "1", "load": ""}]}`},
		{`{"op": "longest_hit", "spec": {"hash_block_size": 16, "groups": []}, "hashes": ["a"]}`, `{"op": "longest_hit", "hit_tokens": 0, "capped": false, "pending": 0, "late": 0, "groups": []}`},
	} {
		if got := ask(t, s, c.request); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.request, got, c.want)
		}
	}
	e.mu.hinted = nil
	ask(t, s, spec+`, "promote": true, "request": "r3", "lease": false, "deadline_ms": 9}`)
	if got := fmt.Sprintf("%q %s %v", e.mu.hinted, e.mu.request, e.mu.options); got != `["0/b" "1/b"] r3 {false 9ms <nil> r3 {0 0}}` {
		t.Errorf("got %s", got)
	}
}

// TestHitRanks shows that a block counts only if all ranks have it, and whose number that is (C7).
func TestHitRanks(t *testing.T) {
	blocks := map[string]names.Place{}
	for rank := range 4 {
		for _, h := range []string{"a", "b"} {
			if rank != 3 || h == "a" {
				blocks[fmt.Sprintf("r%d/0/%s", rank, h)] = inMemory
			}
		}
	}
	s, _ := newService(t, blocks)
	for _, c := range []struct {
		spec, ranks string
		want        int
	}{{``, `1`, 32}, {``, `3`, 32}, {``, `4`, 16}, {``, `5`, 0}, {`, "ranks": 2`, `5`, 32}, {`, "ranks": 5`, `1`, 0}} {
		got := decode[hitReply](t, ask(t, s, `{"op": "longest_hit", "hashes": ["a", "b"], "num_tokens": 64, "template": "r{rank}/{group}/{hash}", "ranks": `+c.ranks+
			`, "spec": {"hash_block_size": 16, "groups": [{"kind": "full", "block_size": 16`+c.spec+`}]}}`))
		if got.HitTokens != c.want {
			t.Errorf("%+v: got %d", c, got.HitTokens)
		}
	}
}

// TestHitBatches shows that the engine is asked for many at a time, and not for all when little is
// needed.
func TestHitBatches(t *testing.T) {
	const n = 4000
	hashes := hashList(n)
	blocks := map[string]names.Place{}
	for _, h := range hashes {
		blocks["0/"+h], blocks["1/"+h] = inMemory, inMemory
	}
	s, e := newService(t, blocks)
	request := `{"op": "longest_hit", "spec": "gemma", "num_tokens": 640000, "hashes": ` + list(hashes) + `}`
	if got := decode[hitReply](t, ask(t, s, request)); got.HitTokens != n*16 {
		t.Fatalf("hit %d", got.HitTokens)
	}
	// All of the full group, and the end of the window.
	if e.mu.names != n+firstAsk || e.mu.calls > n/laterAsk+3 {
		t.Errorf("all there: asked %d times for %d names", e.mu.calls, e.mu.names)
	}
	clear(e.blocks)
	e.mu.names, e.mu.calls = 0, 0
	if got := decode[hitReply](t, ask(t, s, request)); got.HitTokens != 0 {
		t.Fatalf("hit %d", got.HitTokens)
	}
	if e.mu.names > 2*firstAsk {
		t.Errorf("nothing there: asked %d times for %d names", e.mu.calls, e.mu.names)
	}
}

// specsForTests are models of all kinds.
var specsForTests = map[string]hybrid.Spec{
	"full":  {HashBlockSize: 16, Groups: []hybrid.Group{{Kind: hybrid.Full, BlockSize: 16}}},
	"gemma": gemma,
	"wide":  {HashBlockSize: 16, Groups: []hybrid.Group{{Kind: hybrid.MLA, BlockSize: 64}, {Kind: hybrid.SlidingWindow, BlockSize: 32, Window: 100}}},
	"eagle": {HashBlockSize: 16, Eagle: true, Groups: []hybrid.Group{{Kind: hybrid.Full, BlockSize: 16}, {Kind: hybrid.SlidingWindow, BlockSize: 16, Window: 64}}},
	"mamba": {HashBlockSize: 16, CacheBlockSize: 64, Groups: []hybrid.Group{{Kind: hybrid.Full, BlockSize: 64}, {Kind: hybrid.Mamba, BlockSize: 64}}},
	"chunk": {HashBlockSize: 16, Groups: []hybrid.Group{{Kind: hybrid.Full, BlockSize: 16}, {Kind: hybrid.ChunkedLocal, BlockSize: 16, Chunk: 64}}},
	"twins": {HashBlockSize: 16, Groups: []hybrid.Group{{Kind: hybrid.Full, BlockSize: 16}, {Kind: hybrid.Full, BlockSize: 16}, {Kind: hybrid.Full, BlockSize: 16, Variant: 1}}},
	"none":  {HashBlockSize: 16, Groups: []hybrid.Group{}},
}

// TestAgree shows, for random blocks and requests, that longest_hit answers in both forms what the Coordinator
// says when it is asked about the blocks themselves.
func TestAgree(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		n := r.IntN(80)
		hashes, raw := make([]string, n), []byte{}
		for i := range hashes {
			h := []byte{byte(i), byte(r.IntN(3)), 0xab}
			hashes[i], raw = hex.EncodeToString(h), append(raw, h...)
		}
		blocks := randomBlocks(r, hashes)
		e := &fakeEngine{blocks: blocks}
		s, err := New(Options{Engine: e, Tiers: []string{"memory", "disk", "peer"}, Specs: specsForTests})
		must(t, err)
		for name := range specsForTests {
			tokens := 0
			if r.IntN(2) == 0 && n > 0 {
				tokens = 1 + r.IntN(n*16+40)
			}
			agreeHit(t, s, blocks, name, tokens, hashes, raw)
		}
		if t.Failed() {
			return
		}
	}
}

// randomBlocks makes most blocks of the groups 0, 1, and 2 be somewhere, more often the early ones.
func randomBlocks(r *rand.Rand, hashes []string) map[string]names.Place {
	places := []names.Place{inMemory, inMemory, onDisk, atPeer, pending, late, {}}
	blocks := map[string]names.Place{}
	good := r.IntN(len(hashes) + 1)
	for _, group := range []string{"0", "1", "2"} {
		for i, h := range hashes {
			if i < good {
				blocks[group+"/"+h] = places[r.IntN(4)]
			} else {
				blocks[group+"/"+h] = places[r.IntN(len(places))]
			}
		}
	}
	return blocks
}

func agreeHit(t *testing.T, s *Service, blocks map[string]names.Place, name string, tokens int, hashes []string, raw []byte) {
	t.Helper()
	c, err := hybrid.New(specsForTests[name])
	must(t, err)
	member := ""
	length := len(hashes) * c.Spec().HashBlockSize
	if tokens > 0 {
		member, length = fmt.Sprintf(`, "num_tokens": %d`, tokens), tokens
	}
	exists := func(group, unit int) bool {
		return blocks[c.Spec().Groups[group].Name+"/"+hashes[unit]].Presence == driver.Hit
	}
	want := c.Lookup(length, len(hashes), exists)
	fetch := c.Fetch(want.Tokens, 16, len(hashes), want.Load, exists)
	j := decode[hitReply](t, ask(t, s, `{"op": "longest_hit", "spec": "`+name+`", "fetch": true, "cached": 16, "hashes": `+list(hashes)+member+`}`))
	b := askBinary(t, s, binaryForm{op: binaryLongestHit, size: 3, count: len(hashes), subject: name, tokens: tokens, hashes: raw})
	if j.HitTokens != want.Tokens || j.Capped != want.Capped || b.hits != want.Tokens || b.prefix == 1 != want.Capped {
		t.Errorf("%s: JSON %+v, binary %+v, want %+v", name, j, b, want)
		return
	}
	if b.pending > j.Pending || b.late > j.Late { // JSON has looked for what to fetch, too
		t.Errorf("%s: JSON %+v, binary %+v", name, j, b)
	}
	for i, g := range j.Groups {
		load := string(appendBits(nil, want.Load[i]))
		if g.Load != load || b.loads[i] != load || !slices.Equal(g.Fetch, fetch[i]) {
			t.Errorf("%s, group %d: JSON %+v, binary %s, want %s, %v", name, i, g, b.loads[i], load, fetch[i])
		}
	}
}

// TestMasks shows what to read and to write without looking (C6).
func TestMasks(t *testing.T) {
	s, e := newService(t, nil)
	for _, c := range []struct{ request, want string }{
		{`{"op": "load_mask", "spec": "gemma", "hit_tokens": 64}`,
			`{"op": "load_mask", "hit_tokens": 64, "groups": [{"name": "0", "load": "1111", "fetch": [0, 1, 2, 3]}, {"name": "1", "load": "0011", "fetch": [2, 3]}]}`},
		{`{"op": "load_mask", "spec": "gemma", "hit_tokens": 64, "cached": 48, "num_hashes": 9}`,
			`{"op": "load_mask", "hit_tokens": 64, "groups": [{"name": "0", "load": "1111", "fetch": [3]}, {"name": "1", "load": "0011", "fetch": [3]}]}`},
		{`{"op": "load_mask", "spec": "gemma", "hit_tokens": 0, "num_hashes": 0}`,
			`{"op": "load_mask", "hit_tokens": 0, "groups": [{"name": "0", "load": "", "fetch": []}, {"name": "1", "load": "", "fetch": []}]}`},
		{`{"op": "store_mask", "spec": "gemma", "num_tokens": 64}`,
			`{"op": "store_mask", "groups": [{"name": "0", "start": 0, "end": 4, "store": null}, {"name": "1", "start": 0, "end": 4, "store": null}]}`},
		{`{"op": "store_mask", "spec": {"hash_block_size": 16, "scheduler_block_size": 64, "groups": [{"kind": "full", "block_size": 16}, {"kind": "swa", "block_size": 16, "window": 17}]}, "num_tokens": 128, "start": 32}`,
			`{"op": "store_mask", "groups": [{"name": "0", "start": 2, "end": 8, "store": null}, {"name": "1", "start": 2, "end": 8, "store": "010001"}]}`},
		{`{"op": "store_mask", "spec": {"hash_block_size": 16, "scheduler_block_size": 64, "retention_interval": 0, "groups": [{"kind": "swa", "block_size": 16, "window": 17}]}, "num_tokens": 128, "prompt_tokens": 100}`,
			`{"op": "store_mask", "groups": [{"name": "0", "start": 0, "end": 8, "store": "00010000"}]}`},
		{`{"op": "store_mask", "spec": "gemma", "num_tokens": 0}`,
			`{"op": "store_mask", "groups": [{"name": "0", "start": 0, "end": 0, "store": null}, {"name": "1", "start": 0, "end": 0, "store": null}]}`},
		{`{"op": "store_mask", "spec": {"hash_block_size": 16, "groups": []}, "num_tokens": 0}`, `{"op": "store_mask", "groups": []}`},
	} {
		if got := ask(t, s, c.request); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.request, got, c.want)
		}
	}
	if e.mu.calls > 0 {
		t.Error("the engine was asked")
	}
}
