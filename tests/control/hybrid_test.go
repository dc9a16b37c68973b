package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// hitAnswer is the answer of longest_hit.
type hitAnswer struct {
	Op      string     `json:"op"`
	Tokens  int        `json:"hit_tokens"`
	Capped  bool       `json:"capped"`
	Pending int        `json:"pending"`
	Late    int        `json:"late"`
	Groups  []hitGroup `json:"groups"`
	refusal
}

type hitGroup struct {
	Name  string `json:"name"`
	Load  string `json:"load"`
	Fetch []int  `json:"fetch"`
}

func (c *dialogue) longestHit(request obj) hitAnswer {
	c.t.Helper()
	request["op"] = "longest_hit"
	var a hitAnswer
	c.ask(request, &a)
	if a.Error != "" {
		c.t.Fatalf("longest_hit: %s (%s)", a.Error, a.Field)
	}
	return a
}

// binaryHit asks in binary, and returns the answer without the names of groups.
func (c *dialogue) binaryHit(q binaryRequest) hitAnswer {
	c.t.Helper()
	q.longest = true
	c.send(q.bytes())
	b := c.receive()
	if len(b) < 24 || string(b[:4]) != "KVA1" {
		c.t.Fatalf("binary answer of %d bytes: %q", len(b), cut(string(b)))
	}
	field := func(at int) int { return int(le.Uint32(b[at:])) }
	a := hitAnswer{Op: "longest_hit", Tokens: field(4), Pending: field(8), Late: field(12), Capped: field(16) == 1}
	rest := b[24:]
	for range field(20) {
		if len(rest) < 4 || len(rest)-4 < int(le.Uint32(rest)) {
			c.t.Fatalf("binary answer: the groups are cut off")
		}
		n := int(le.Uint32(rest))
		a.Groups = append(a.Groups, hitGroup{Load: string(rest[4 : 4+n])})
		rest = rest[4+n:]
	}
	if len(rest) > 0 {
		c.t.Errorf("binary answer: %d bytes after the last group", len(rest))
	}
	return a
}

// layer is a group of the naive model: blocks of 16 tokens, as hash blocks are.
type layer struct {
	name, kind string
	window     int // tokens
}

const tokensPerBlock = 16

// spec returns the spec of the model's layers.
func specOf(layers []layer) obj {
	var groups []obj
	for _, l := range layers {
		g := obj{"name": l.name, "kind": l.kind, "block_size": tokensPerBlock}
		if l.window > 0 {
			g["window"] = l.window
		}
		groups = append(groups, g)
	}
	return obj{"hash_block_size": tokensPerBlock, "groups": groups}
}

// needs returns which of the first n blocks a layer reads to go on after them.
func (l layer) needs(n int) []bool {
	need := make([]bool, n)
	for b := range need {
		switch l.kind {
		case "full", "mla":
			need[b] = true
		case "swa", "swa_mla":
			// The token after block n-1 sees window-1 tokens before itself.
			need[b] = (b+1)*tokensPerBlock > n*tokensPerBlock-(l.window-1)
		case "mamba":
			need[b] = b == n-1
		}
	}
	return need
}

// naiveHit finds the longest prefix of a prompt by trying all, from the longest on:
// present tells for each layer which blocks are there.
func naiveHit(layers []layer, present [][]bool, numTokens, cached int) hitAnswer {
	best := func(most int) int {
		for n := most; n > 0; n-- {
			ok := true
			for i, l := range layers {
				for b, need := range l.needs(n) {
					ok = ok && (!need || present[i][b])
				}
			}
			if ok {
				return n
			}
		}
		return 0
	}
	hashes := len(present[0])
	hit := best(min(hashes, numTokens/tokensPerBlock))
	a := hitAnswer{Op: "longest_hit"}
	if hit > 0 && hit*tokensPerBlock >= numTokens {
		most := (numTokens - 1) / tokensPerBlock
		hit, a.Capped = best(most), most > 0 // Of a prompt of one block nothing is left to shorten.
	}
	a.Tokens = hit * tokensPerBlock
	for _, l := range layers {
		g := hitGroup{Name: l.name, Fetch: []int{}}
		for b, need := range l.needs(hit) {
			if !need {
				g.Load += "0"
				continue
			}
			g.Load += "1"
			if b >= cached/tokensPerBlock {
				g.Fetch = append(g.Fetch, b)
			}
		}
		a.Groups = append(a.Groups, g)
	}
	return a
}

// TestLongestHit asks for prompts on the real mount. Random blocks of three groups are in memory, on disk, or
// missing. It compares the answers with a trial of all lengths. Blocks to be fetched can be opened. JSON and binary
// agree (C7, C8, C9).
func TestLongestHit(t *testing.T) {
	d := diskMount(t, harness.Options{})
	rnd := newRand(t)
	query, specs := talk(t, d, "query"), talk(t, d, "specs")
	models := map[string][]layer{
		"full":      {{"g", "full", 0}},
		"window":    {{"g", "swa", 50}},
		"gemma":     {{"full", "full", 0}, {"swa", "swa", 64}},
		"jamba":     {{"full", "full", 0}, {"mamba", "mamba", 0}},
		"all":       {{"full", "full", 0}, {"swa", "swa", 40}, {"mamba", "mamba", 0}},
		"two kinds": {{"swa", "swa", 33}, {"mla", "mla", 0}, {"full", "full", 0}},
	}
	for name, layers := range models {
		t.Run(name, func(t *testing.T) {
			c := &dialogue{t, query.fd}
			spec, err := json.Marshal(obj{"set": obj{name: specOf(layers)}})
			must(t, "spec", err)
			(&dialogue{t, specs.fd}).specs(string(spec))
			for prompt := range 6 {
				template := fmt.Sprintf("%s-%d/{group}/{hash}", strings.ReplaceAll(name, " ", "-"), prompt)
				blocks := 1 + rnd.IntN(24)
				present := make([][]bool, len(layers))
				var keys []string
				missing := rnd.IntN(4) // of 20
				for i, l := range layers {
					for b := range blocks {
						there := rnd.IntN(20) >= missing
						if present[i] = append(present[i], there); there {
							keys = append(keys, strings.NewReplacer("{group}", l.name, "{hash}", hash(b)).Replace(template))
						}
					}
				}
				for i, key := range keys {
					if prompt == 0 && i < 5 {
						coldBlocks(t, d, 4*kib, key)
					} else {
						put(t, d.Path(key), []byte("x"))
					}
				}
				for range 8 {
					numTokens := blocks*tokensPerBlock + rnd.IntN(40) - 20
					numTokens = max(1, numTokens)
					cached := rnd.IntN(3) * tokensPerBlock
					want := naiveHit(layers, present, numTokens, cached)
					request := obj{"spec": name, "hashes": hashes(blocks), "template": template, "num_tokens": numTokens, "cached": cached, "fetch": true}
					if rnd.IntN(2) == 0 {
						request["spec"] = specOf(layers)
					}
					got := c.longestHit(request)
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Fatalf("%d blocks, %d tokens, present %v:\ngot  %+v\nwant %+v", blocks, numTokens, present, got, want)
					}
					for _, g := range got.Groups {
						for _, u := range g.Fetch {
							p := d.Path(strings.NewReplacer("{group}", g.Name, "{hash}", hash(u)).Replace(template))
							if _, err := readBlock(p); err != nil {
								t.Errorf("to be fetched: %s: %v", p, err)
							}
						}
					}
					inBinary := c.binaryHit(binaryRequest{group: name, hashes: hashes(blocks), template: template, numTokens: uint32(numTokens)})
					for i := range want.Groups {
						want.Groups[i].Fetch, want.Groups[i].Name = nil, ""
					}
					if fmt.Sprint(inBinary) != fmt.Sprint(want) {
						t.Fatalf("in binary: %d blocks, %d tokens, present %v:\ngot  %+v\nwant %+v", blocks, numTokens, present, inBinary, want)
					}
				}
			}
		})
	}
}

// TestLongestHitOptions shows the rest of a request: its length left out, no hashes (C18),
// blocks that are being written, ranks, promotion, and that fetch is left out unless it
// was asked for.
func TestLongestHitOptions(t *testing.T) {
	d := diskMount(t, harness.Options{})
	c := talk(t, d, "query")
	spec := specOf([]layer{{"g", "full", 0}})
	keys := keysOf("g", hashes(6))
	coldBlocks(t, d, 4*kib, keys[4:]...)
	for _, key := range keys[:4] {
		put(t, d.Path(key), []byte("x"))
	}
	got := c.longestHit(obj{"spec": spec, "hashes": hashes(8)})
	if want := (hitAnswer{Op: "longest_hit", Tokens: 96, Groups: []hitGroup{{Name: "g", Load: "111111"}}}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got = c.longestHit(obj{"spec": spec, "hashes": hashes(6)})
	if got.Tokens != 80 || !got.Capped || got.Groups[0].Load != "11111" {
		t.Errorf("the whole prompt: got %+v, want 80 tokens, capped", got)
	}
	for _, request := range []obj{{"spec": spec, "hashes": []string{}}, {"spec": spec, "hashes": []string{}, "num_tokens": 100, "fetch": true}, {"spec": spec, "hashes": hashes(6), "num_tokens": 5}} {
		if got := c.longestHit(request); got.Tokens != 0 || got.Capped || len(got.Groups) != 1 || got.Groups[0].Load != "" {
			t.Errorf("%v: got %+v, want no hit", request, got)
		}
	}
	none := c.longestHit(obj{"spec": obj{"hash_block_size": 16, "groups": []obj{}}, "hashes": hashes(6)})
	if none.Tokens != 0 || len(none.Groups) != 0 {
		t.Errorf("no groups: got %+v", none)
	}

	writer := harness.NewActor(t, nil)
	_, err := writer.Open(d.Path("g", hash(6)), unix.O_WRONLY|unix.O_CREAT, 0o644)
	must(t, "open", err)
	got = c.longestHit(obj{"spec": spec, "hashes": hashes(9)})
	if got.Tokens != 96 || got.Pending != 1 {
		t.Errorf("with a block that is being written: got %+v, want 96 tokens and 1 pending", got)
	}

	for _, name := range []string{"m_r0/" + hash(0), "m_r1/" + hash(0), "m_r0/" + hash(1)} {
		put(t, d.Path(name), []byte("x"))
	}
	got = c.longestHit(obj{"spec": spec, "hashes": hashes(3), "template": "m_r{rank}/{hash}", "ranks": 2})
	if got.Tokens != 16 {
		t.Errorf("two ranks: got %+v, want 16 tokens", got)
	}
	byGroup := obj{"hash_block_size": 16, "groups": []obj{{"kind": "mla", "block_size": 16, "ranks": 1}}}
	got = c.longestHit(obj{"spec": byGroup, "hashes": hashes(3), "template": "m_r{rank}/{hash}", "ranks": 2})
	if got.Tokens != 32 {
		t.Errorf("a group of one rank: got %+v, want 32 tokens", got)
	}

	f := follow(t, d, nil)
	c.longestHit(obj{"spec": spec, "hashes": hashes(6), "promote": true, "request": "req-lh"})
	f.allStored("memory", "promoted", keys[4])
}

// TestGroupsApart writes blocks of one group and asks for the same hashes in another: a
// miss in exists, no hit in longest_hit, nothing in prefetch; what is read under a group's
// name is that group's (C20, C21).
func TestGroupsApart(t *testing.T) {
	d := diskMount(t, harness.Options{})
	c := talk(t, d, "query")
	for _, group := range []string{"a", "ab", "a_b"} {
		for i := range 8 {
			key := group + "/" + hash(i)
			store(t, d.Path(key), pattern(key, 20_000))
		}
	}
	must(t, "mkdir", unix.Mkdir(d.Path("b"), 0o755))
	for _, cold := range []bool{false, true} {
		if cold {
			for _, group := range []string{"a", "ab", "a_b"} {
				for i := range 8 {
					waitOnDisk(t, d.Path(group, hash(i)))
				}
			}
			kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
		}
		want := map[string]string{"a": "mmmmmmmm", "ab": "mmmmmmmm", "a_b": "mmmmmmmm", "b": "........", "": "........", "a/": "........", "A": "........"}
		for group, states := range want {
			if cold {
				states = strings.ReplaceAll(states, "m", "d")
			}
			if group == "a/" {
				continue // Not a group: what comes of it is not said.
			}
			if got := c.exists(obj{"group": group, "hashes": hashes(8), "lease": false}).States; got != states {
				t.Errorf("cold %v: group %q: got %q, want %q", cold, group, got, states)
			}
		}
		both := specOf([]layer{{"a", "full", 0}, {"b", "swa", 40}})
		if got := c.longestHit(obj{"spec": both, "hashes": hashes(8), "lease": false}); got.Tokens != 0 {
			t.Errorf("cold %v: a hit of groups a and b: %+v, and nothing is in b", cold, got)
		}
		if got := talk(t, d, "prefetch").prefetch(obj{"group": "b", "hashes": hashes(8)}).Results; got != "........" {
			t.Errorf("cold %v: prefetch of group b: %q", cold, got)
		}
		both = specOf([]layer{{"a", "full", 0}, {"a_b", "swa", 40}})
		if got := c.longestHit(obj{"spec": both, "hashes": hashes(8), "num_tokens": 129, "lease": false}); got.Tokens != 128 {
			t.Errorf("cold %v: groups a and a_b: %+v, want 128 tokens", cold, got)
		}
	}
	for _, group := range []string{"a", "ab", "a_b"} {
		for i := range 8 {
			key := group + "/" + hash(i)
			wantBytes(t, d.Path(key), pattern(key, 20_000))
		}
	}
	wantMiss(t, d.Path("b", hash(0)))
}

// TestMasks shows load_mask, which does not look for blocks, and store_mask, also of
// empty lists (C6, C14, C18).
func TestMasks(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	c := talk(t, d, "query")
	layers := []layer{{"full", "full", 0}, {"swa", "swa", 40}, {"mamba", "mamba", 0}}
	spec := specOf(layers)
	all := make([][]bool, len(layers))
	for i := range all {
		all[i] = slices.Repeat([]bool{true}, 20)
	}
	for _, row := range []struct{ hit, cached int }{{0, 0}, {16, 0}, {160, 0}, {160, 32}, {160, 160}, {320, 100}} {
		var got hitAnswer
		c.ask(obj{"op": "load_mask", "spec": spec, "hit_tokens": row.hit, "cached": row.cached, "num_hashes": 20}, &got)
		want := naiveHit(layers, all, row.hit+1, row.cached)
		want.Op = "load_mask"
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("load_mask %+v:\ngot  %+v\nwant %+v", row, got, want)
		}
	}
	type storeGroup struct {
		Name  string  `json:"name"`
		Start int     `json:"start"`
		End   int     `json:"end"`
		Store *string `json:"store"`
	}
	var stored struct {
		Op     string       `json:"op"`
		Groups []storeGroup `json:"groups"`
		refusal
	}
	// With an interval of 64 tokens, of a window of 40 the last three blocks before each
	// multiple are kept, of mamba the last one. Of full attention all.
	retain := specOf(layers)
	retain["retention_interval"] = 64
	c.ask(obj{"op": "store_mask", "spec": retain, "num_tokens": 128, "start": 32}, &stored)
	want := map[string]string{"full": "all", "swa": "110111", "mamba": "010001"}
	if stored.Op != "store_mask" || len(stored.Groups) != 3 {
		t.Fatalf("store_mask: got %+v", stored)
	}
	for _, g := range stored.Groups {
		got := "all"
		if g.Store != nil {
			got = *g.Store
		}
		if got != want[g.Name] || g.Start != 2 || g.End != 8 {
			t.Errorf("store_mask: group %s: got %s from %d to %d, want %s from 2 to 8", g.Name, got, g.Start, g.End, want[g.Name])
		}
	}
	stored.Groups = nil
	c.ask(obj{"op": "store_mask", "spec": retain, "num_tokens": 0}, &stored)
	for _, g := range stored.Groups {
		if g.Start != 0 || g.End != 0 || g.Store != nil && *g.Store != "" {
			t.Errorf("store_mask of nothing: got %+v", g)
		}
	}
}
