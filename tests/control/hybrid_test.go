package control

import (
	"encoding/json"
	"fmt"
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

// TestLongestHit asks for a prompt of which one group has all blocks and a window of another its last ones, in memory,
// on disk, and being written. Blocks to be fetched can be opened. JSON and binary agree (C7, C8, C9).
func TestLongestHit(t *testing.T) {
	d := diskMount(t, harness.Options{})
	c := talk(t, d, "query")
	layers := []layer{{"full", "full", 0}, {"swa", "swa", 40}}
	spec, err := json.Marshal(obj{"set": obj{"gemma": specOf(layers)}})
	must(t, "spec", err)
	talk(t, d, "specs").specs(string(spec))
	coldBlocks(t, d, 4*kib, keysOf("full", hashes(4))...)
	for _, key := range append(keysOf("full", hashes(7)[4:]), keysOf("swa", hashes(7)[2:6])...) {
		put(t, d.Path(key), []byte("x"))
	}
	_, err = harness.NewActor(t, nil).Open(d.Path("swa", hash(6)), unix.O_WRONLY|unix.O_CREAT, 0o644)
	must(t, "open by another process", err)

	// Six blocks of 16 tokens: of the seventh the window is still being written.
	want := hitAnswer{Op: "longest_hit", Tokens: 96, Pending: 1, Groups: []hitGroup{
		{Name: "full", Load: "111111", Fetch: []int{2, 3, 4, 5}}, {Name: "swa", Load: "000111", Fetch: []int{3, 4, 5}},
	}}
	for _, named := range []any{"gemma", specOf(layers)} {
		got := c.longestHit(obj{"spec": named, "hashes": hashes(9), "cached": 32, "fetch": true})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("spec %v:\ngot  %+v\nwant %+v", named, got, want)
		}
		for _, g := range got.Groups {
			for _, u := range g.Fetch {
				if _, err := readBlock(d.Path(g.Name, hash(u))); err != nil {
					t.Errorf("to be fetched: %s/%s: %v", g.Name, hash(u), err)
				}
			}
		}
	}
	for i := range want.Groups {
		want.Groups[i].Name, want.Groups[i].Fetch = "", nil
	}
	if got := c.binaryHit(binaryRequest{group: "gemma", hashes: hashes(9)}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("in binary:\ngot  %+v\nwant %+v", got, want)
	}
	if got := c.longestHit(obj{"spec": "gemma", "hashes": hashes(6)}); got.Tokens != 80 || !got.Capped {
		t.Errorf("the whole prompt: got %+v, want 80 tokens, capped", got)
	}
}
