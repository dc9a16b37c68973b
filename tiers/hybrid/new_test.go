package hybrid

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNewRefuses shows that a spec is checked when it is set, before any traffic, and that the
// error names each reason against it (C2, C3, C4, C10, C24).
func TestNewRefuses(t *testing.T) {
	full := Group{Kind: Full, BlockSize: 32}
	state := Group{Kind: Mamba, BlockSize: 32}
	interval := func(n int) *int { return &n }
	for _, c := range []struct {
		name string
		spec Spec
		want []string
	}{
		{"nothing", Spec{HashBlockSize: 16}, []string{"kv_cache_config is required"}},
		{"no hash block", Spec{Groups: []Group{full}}, []string{"hash_block_size (0) must be in 1..1048576"}},
		{"negative", Spec{HashBlockSize: -16, SchedulerBlockSize: -1, Groups: []Group{{Kind: Full, BlockSize: -5}}},
			[]string{"hash_block_size (-16)", "scheduler_block_size (-1)", "group 0: block_size (-5)"}},
		{"absurd", Spec{HashBlockSize: 16, Groups: []Group{{Kind: Full, BlockSize: math.MaxInt}}}, []string{"group 0: block_size (9223372036854775807) must be in 1..1048576"}},
		{"no common multiple", Spec{HashBlockSize: 1, Groups: []Group{{Kind: Full, BlockSize: 1048573}, {Kind: Full, BlockSize: 1048575}}}, []string{"no common multiple"}},
		{"no window", Spec{HashBlockSize: 16, Groups: []Group{{Kind: SlidingWindow, BlockSize: 16}, {Kind: WindowMLA, BlockSize: 16, Window: -1}}}, []string{"group 0: window (0)", "group 1: window (-1)"}},
		{"no chunk", Spec{HashBlockSize: 16, Groups: []Group{{Kind: ChunkedLocal, BlockSize: 16}}}, []string{"group 0: chunk (0)"}},
		{"unknown kind", Spec{HashBlockSize: 16, Groups: []Group{full, {Kind: "enc", BlockSize: 16}, {BlockSize: 16}}}, []string{`group 1: No manager registered for KVCacheSpec "enc"`, `group 2: No manager registered for KVCacheSpec ""`}},
		{"mamba of another mode", Spec{HashBlockSize: 16, Groups: []Group{{Kind: Mamba, BlockSize: 32, Mode: "all"}}}, []string{"group 0: MambaSpec with block_size=32 != cache_config.block_size=16"}},
		{"mamba mode", Spec{HashBlockSize: 16, Groups: []Group{{Kind: Mamba, BlockSize: 16, Mode: "some"}}}, []string{`group 0: unknown mamba_cache_mode "some"`}},
		{"negative context", Spec{HashBlockSize: 16, PrefillContext: -2, Groups: []Group{full}}, []string{"prefill context parallel size (-2)"}},
		{"chunk of parts", Spec{HashBlockSize: 16, Groups: []Group{{Kind: ChunkedLocal, BlockSize: 32, Chunk: 48}}}, []string{"group 0: attention chunk (48) must be a multiple of block_size (32)"}},
		{"retention", Spec{HashBlockSize: 16, Retention: interval(40), Groups: []Group{full}}, []string{"prefix_cache_retention_interval (40) must be non-negative and a multiple", "retention has no effect"}},
		{"names", Spec{HashBlockSize: 16, Groups: []Group{{Name: "1", Kind: Full, BlockSize: 16}, full}}, []string{`group 1: has the name "1" of group 0`}},
		{"ranks", Spec{HashBlockSize: 16, Groups: []Group{{Kind: Full, BlockSize: 16, Ranks: -1}}}, []string{"group 0: ranks (-1)"}},
		{"beyond all limits", Spec{HashBlockSize: 16, CacheBlockSize: -1, DecodeContext: -2, Retention: interval(1 << 32),
			Groups: []Group{{Name: "a/../b", Kind: Full, BlockSize: 16, Variant: 1 << 40}}},
			[]string{"cache_config.block_size (-1)", "decode context parallel size (-2)", "must be at most 2147483647", "group 0: name ", "must fit into 32 bits"}},
		{"many groups", Spec{HashBlockSize: 16, Groups: make([]Group, 65)}, []string{"65 groups, 64 is the limit"}},
		{"all at once", Spec{HashBlockSize: 16, CacheBlockSize: 16, DecodeContext: 4, Groups: []Group{{Kind: Cross, BlockSize: 20}, state, {Kind: "new", BlockSize: 0}}},
			[]string{"group 0: CrossAttentionSpec; group 1: MambaSpec", "; PCP/DCP > 1", "group 0: block_size must be divisible", `group 2: No manager registered for KVCacheSpec "new"`, "group 2: block_size (0)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.spec)
			if !errors.Is(err, ErrSpec) {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %s", err, want)
				}
			}
			if again := c.spec.Check(); again == nil || again.Error() != err.Error() {
				t.Errorf("Check: %v", again)
			}
		})
	}
}

// TestDefaults shows what is filled in, and that a Coordinator keeps nothing of its caller's.
func TestDefaults(t *testing.T) {
	interval := 192
	groups := []Group{{Kind: Full, BlockSize: 48}, {Name: "states", Kind: Mamba, BlockSize: 64}}
	c, err := New(Spec{HashBlockSize: 16, Retention: &interval, Groups: groups})
	must(t, err)
	groups[0].BlockSize, interval = 1, 1
	s := c.Spec()
	if s.SchedulerBlockSize != 192 || s.CacheBlockSize != 64 || s.PrefillContext != 1 || s.DecodeContext != 1 || *s.Retention != 192 {
		t.Errorf("got %+v", s)
	}
	if s.Groups[0].Name != "0" || s.Groups[0].BlockSize != 48 || s.Groups[1].Name != "states" || s.Groups[1].Mode != "align" {
		t.Errorf("got %+v", s.Groups)
	}
	if c.align != 16 {
		t.Errorf("align %d in fine mode", c.align)
	}
}

// TestEmpty shows that empty input is an empty answer and not an error or a crash,
// for every method and kind (C18, C21, C22).
func TestEmpty(t *testing.T) {
	nothing := func(int, int) bool { t.Error("asked"); return false }
	for _, groups := range [][]Group{
		{},
		{{Kind: Full, BlockSize: 32}},
		{{Kind: SlidingWindow, BlockSize: 16, Window: 1}},
		{{Kind: ChunkedLocal, BlockSize: 16, Chunk: 64}},
		{{Kind: Full, BlockSize: 32}, {Kind: WindowMLA, BlockSize: 16, Window: 64}, {Kind: Mamba, BlockSize: 32}},
	} {
		c, err := New(Spec{HashBlockSize: 16, Eagle: len(groups) == 2, Groups: groups})
		must(t, err)
		for _, ask := range [][2]int{{0, 0}, {0, 10}, {1000, 0}, {-1, 10}, {1000, -1}, {math.MinInt, math.MinInt}, {15, 10}} {
			hit := c.Lookup(ask[0], ask[1], nothing)
			if hit.Tokens != 0 || hit.Capped || len(hit.Load) != len(groups) || len(slices.Concat(hit.Load...)) != 0 {
				t.Errorf("Lookup%v: %+v", ask, hit)
			}
		}
		tokens, masks, err := c.Find(0, 0, true, nothing)
		if err != nil || tokens != 0 || len(masks) != len(groups) {
			t.Errorf("Find: %d %v %v", tokens, masks, err)
		}
		load, err := c.Load(0)
		if err != nil || len(load) != len(groups) {
			t.Errorf("Load: %v %v", load, err)
		}
		for _, tokens := range []int{0, 64} {
			units := c.Fetch(tokens, 64, 0, load, nothing)
			more := c.Fetch(tokens, 0, 4, nil, nothing)
			if len(units) != len(groups) || len(slices.Concat(units...)) != 0 || len(slices.Concat(more...)) != 0 {
				t.Errorf("Fetch: %v %v", units, more)
			}
		}
		stored, err := c.Store(0, 0, 0)
		if err != nil || len(stored) != len(groups) {
			t.Errorf("Store: %v %v", stored, err)
		}
	}
}

// TestErrors shows the questions that have no answer.
func TestErrors(t *testing.T) {
	c, err := New(Spec{HashBlockSize: 16, Groups: []Group{{Kind: Full, BlockSize: 32}, {Kind: SlidingWindow, BlockSize: 16, Window: 64}}})
	must(t, err)
	check := func(what string, err error) {
		if !errors.Is(err, ErrRange) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, tokens := range []int{-32, 16, 33, math.MaxInt} {
		_, err = c.Load(tokens)
		check("Load", err)
		_, err = c.Store(tokens, 0, 0)
		check("Store", err)
	}
	_, _, err = c.Find(-1, 4, false, nil)
	check("Find", err)
	_, _, err = c.Find(math.MaxInt, 4, false, nil)
	check("Find", err)
	_, _, err = c.Find(64, -1, false, nil)
	check("Find", err)
}

// TestReceiver shows the two modes: with nothing to ask everything is there, so that only
// the masks are of interest; they leave out what the window does not reach (C6, C9).
func TestReceiver(t *testing.T) {
	c, err := New(Spec{HashBlockSize: 16, Groups: []Group{{Kind: Full, BlockSize: 16}, {Kind: SlidingWindow, BlockSize: 16, Window: 33}, {Kind: Mamba, BlockSize: 16}}})
	must(t, err)
	want := []string{"11111", "00011", "00001"}
	load, err := c.Load(80)
	if err != nil || !slices.Equal(texts(load), want) {
		t.Errorf("Load: %v %v", texts(load), err)
	}
	if hit := c.Lookup(81, 5, nil); hit.Tokens != 80 || !slices.Equal(texts(hit.Load), want) {
		t.Errorf("Lookup: %+v", hit)
	}
	// Each mask is its caller's own.
	load[0] = append(load[0], true)
	if textOf(load[1]) != want[1] {
		t.Error("masks share their ends")
	}
}
