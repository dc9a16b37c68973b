package hybrid

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// world is a random spec with a random presence of its blocks.
type world struct {
	c      *Coordinator
	units  int
	tokens int
	have   [][]bool // group, unit
	asked  [][]int
	t      testing.TB
}

// newWorld makes a spec that New accepts.
func newWorld(t testing.TB, rng *rand.Rand) *world {
	for {
		spec := randomSpec(rng)
		c, err := New(spec)
		if err != nil {
			continue
		}
		w := &world{c: c, units: rng.IntN(60), t: t}
		w.tokens = w.units*spec.HashBlockSize + rng.IntN(3*spec.HashBlockSize)
		dense := rng.IntN(3)
		for range spec.Groups {
			have := make([]bool, w.units)
			for u := range have {
				have[u] = dense == 0 || rng.IntN(20) < 10+5*dense
			}
			w.have = append(w.have, have)
			w.asked = append(w.asked, make([]int, w.units))
		}
		return w
	}
}

func randomSpec(rng *rand.Rand) Spec {
	hash := []int{4, 12, 16, 17}[rng.IntN(4)]
	spec := Spec{HashBlockSize: hash, Eagle: rng.IntN(2) == 0}
	if rng.IntN(3) == 0 {
		interval := rng.IntN(4) * hash * 12
		spec.Retention = &interval
	}
	kinds := []Kind{Full, MLA, RSWA, Sink, SlidingWindow, WindowMLA, SlidingWindow, ChunkedLocal, Mamba, Mamba}
	for range rng.IntN(5) {
		g := Group{Kind: kinds[rng.IntN(len(kinds))], BlockSize: hash * []int{1, 1, 2, 3, 4, 6}[rng.IntN(6)],
			Variant: rng.IntN(2), Eagle: rng.IntN(4) == 0}
		g.Window = 1 + rng.IntN(6*hash)
		g.Chunk = g.BlockSize * (1 + rng.IntN(4))
		spec.Groups = append(spec.Groups, g)
	}
	if spec.Groups == nil {
		spec.Groups = []Group{}
	}
	return spec
}

func (w *world) exists(g, u int) bool {
	w.asked[g][u]++ // out of range panics
	if w.asked[g][u] > 1 {
		w.t.Fatalf("%+v: group %d, unit %d was asked for twice", w.c.spec, g, u)
	}
	return w.have[g][u]
}

// TestNothingMadeUp shows that answers are aligned, leave the last token to be computed, have masks
// that cover them, and name only blocks that are there, with eagle groups too (C8, C9, C12).
func TestNothingMadeUp(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		w := newWorld(t, rng)
		hit := w.c.Lookup(w.tokens, w.units, w.exists)
		state := fmt.Sprintf("%+v\n%d tokens, %v\ngot %d", w.c.spec, w.tokens, texts(w.have), hit.Tokens)
		if hit.Tokens < 0 || hit.Tokens > min(w.tokens-1, w.units*w.c.spec.HashBlockSize) && hit.Tokens > 0 || hit.Tokens%w.c.align != 0 {
			t.Fatal(state)
		}
		for g, load := range hit.Load {
			if len(load) != ceilDiv(hit.Tokens, w.c.spec.Groups[g].BlockSize) {
				t.Fatalf("%s: masks %v", state, texts(hit.Load))
			}
		}
		if load, err := w.c.Load(hit.Tokens); err != nil || !reflect.DeepEqual(load, hit.Load) {
			t.Fatalf("%s: Load %v %v", state, load, err)
		}
		// What is needed is loaded or was cached, and nothing else.
		cached := rng.IntN(hit.Tokens + 1)
		for _, units := range w.asked {
			clear(units)
		}
		for g, units := range w.c.Fetch(hit.Tokens, cached, w.units, hit.Load, w.exists) {
			for _, u := range units {
				if !w.have[g][u] {
					t.Fatalf("%s: group %d, unit %d is not there", state, g, u)
				}
			}
		}
	}
}

// TestHugeQuestion shows that lengths that cannot be are bounded, not allocated.
func TestHugeQuestion(t *testing.T) {
	c, err := New(Spec{HashBlockSize: 16, Groups: []Group{{Kind: Full, BlockSize: 16}, {Kind: SlidingWindow, BlockSize: 16, Window: 64}}})
	must(t, err)
	hit := c.Lookup(math.MaxInt, math.MaxInt, func(g, u int) bool {
		if u >= MaxUnits {
			t.Error("asked beyond the limit")
		}
		return u < 10
	})
	if hit.Tokens != 160 {
		t.Errorf("got %d", hit.Tokens)
	}
}

// FuzzLookup shows that no spec and no question makes a panic, and that nothing out of
// range is asked for.
func FuzzLookup(f *testing.F) {
	f.Add([]byte{16, 0, 0, 2, 16, 0, 4, 0, 16, 64}, 100, 6, 32, uint64(0xff))
	f.Add([]byte{16, 0, 1, 8, 32, 0, 0, 1, 32, 0, 4, 1, 16, 40}, 260, 16, 0, ^uint64(0))
	f.Add([]byte{12, 0, 0, 7, 48, 2, 5, 0, 24, 1}, 400, 30, -1, uint64(0xfff0ff))
	f.Add([]byte{17, 0, 1, 0, 34, 0, 4, 0, 17, 1}, -5, 1<<40, 1<<50, uint64(1))
	f.Fuzz(func(t *testing.T, config []byte, tokens, hashes, other int, presence uint64) {
		at := func(i int) int {
			if i < len(config) {
				return int(config[i])
			}
			return 0
		}
		kinds := []Kind{Full, MLA, RSWA, Sink, SlidingWindow, WindowMLA, ChunkedLocal, ChunkedLocal, Mamba, Cross, "", "new"}
		spec := Spec{HashBlockSize: at(0), SchedulerBlockSize: at(1), Eagle: at(2)&1 != 0, Groups: []Group{}}
		if at(2)&2 != 0 {
			spec.Retention = &tokens
		}
		for i := 3; i < len(config); i += 4 {
			spec.Groups = append(spec.Groups, Group{Kind: kinds[at(i)%len(kinds)], BlockSize: at(i + 1), Eagle: at(i+2)&1 != 0,
				Variant: at(i+2) >> 1, Window: at(i + 3), Chunk: at(i+3) * at(i+1)})
		}
		c, err := New(spec)
		accepted := err == nil
		if !accepted {
			// The search has to stand what is merely of no use.
			if c, err = build(spec.withDefaults()); err != nil {
				return
			}
		}
		hashes = min(hashes, 1<<10)
		exists := func(g, u int) bool {
			if g < 0 || g >= len(spec.Groups) || u < 0 || u >= hashes {
				t.Fatalf("asked for group %d, unit %d", g, u)
			}
			return presence>>((g*7+u)&63)&1 != 0
		}
		hit := c.Lookup(tokens, hashes, exists)
		if hit.Tokens < 0 || hit.Tokens > max(0, tokens) || accepted && hit.Tokens%c.align != 0 {
			t.Fatalf("%+v: %+v of %d", spec, hit, tokens)
		}
		c.Fetch(hit.Tokens, other, hashes, hit.Load, exists)
		c.Fetch(min(tokens, 1<<20), other, hashes, hit.Load, exists)
		small := other & (1<<16 - 1)
		if _, masks, err := c.Find(small, hashes, true, exists); err == nil && len(masks) != len(spec.Groups) {
			t.Fatalf("%d masks", len(masks))
		}
		if load, err := c.Load(small); err == nil {
			c.Fetch(small, tokens, hashes, load, nil)
		}
		if _, err := c.Store(small, tokens, hashes); err != nil && small%c.align == 0 {
			t.Fatal(err)
		}
	})
}
