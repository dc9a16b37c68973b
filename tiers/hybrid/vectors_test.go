package hybrid

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
)

// vectorGroup and vectorConfig are the specs of a vector.
type vectorGroup struct {
	K     Kind   `json:"k"`
	BS    int    `json:"bs"`
	Win   int    `json:"win"`
	Chunk int    `json:"chunk"`
	Mode  string `json:"mode"`
	V     int    `json:"v"`
	Eg    bool   `json:"eg"`
	Uni   bool   `json:"uni"`
}

type vectorConfig struct {
	HBS    int           `json:"hbs"`
	SBS    int           `json:"sbs"`
	Eagle  bool          `json:"eagle"`
	Ret    *int          `json:"ret"`
	Groups []vectorGroup `json:"groups"`
}

// spec returns the Spec of cfg. Kinds have the same names there and here; "enc" is one that kvfs does not know.
func (cfg vectorConfig) spec() Spec {
	s := Spec{HashBlockSize: cfg.HBS, SchedulerBlockSize: cfg.SBS, Eagle: cfg.Eagle, Retention: cfg.Ret}
	if cfg.Groups != nil {
		s.Groups = []Group{}
	}
	for _, g := range cfg.Groups {
		s.Groups = append(s.Groups, Group{Kind: g.K, BlockSize: g.BS, Window: g.Win, Chunk: g.Chunk, Mode: g.Mode,
			Variant: g.V, Eagle: g.Eg, Uniform: g.Uni})
	}
	return s
}

// answerOr is an answer of type T, or an exception.
type answerOr[T any] struct {
	value T
	err   string
	msg   string
}

func (a *answerOr[T]) UnmarshalJSON(text []byte) error {
	var failed struct {
		Err string `json:"err"`
		Msg string `json:"msg"`
	}
	if strict(text, &failed) == nil && failed.Err != "" {
		a.err, a.msg = failed.Err, failed.Msg
		return nil
	}
	return strict(text, &a.value)
}

// strict decodes text, all fields of which must be known.
func strict(text []byte, v any) error {
	return jsonv2.Unmarshal(text, v, jsonv2.RejectUnknownMembers(true))
}

type findAnswer struct {
	Hit   int      `json:"hit"`
	Masks []string `json:"masks"`
}

type lookupAnswer struct {
	Hit    int  `json:"hit"`
	Capped bool `json:"capped"`
}

type keysAnswer struct {
	Cached int     `json:"cached"`
	Units  [][]int `json:"units"`
}

type storeAnswer struct {
	Len    int       `json:"len"`
	Start  int       `json:"start"`
	Prompt *int      `json:"prompt"`
	Masks  []*string `json:"masks"`
}

type hitVector struct {
	ID         string               `json:"id"`
	Tag        string               `json:"tag"`
	Cfg        vectorConfig         `json:"cfg"`
	Hashes     []string             `json:"hashes"`
	NumTokens  int                  `json:"num_tokens"`
	MaxLen     int                  `json:"max_len"`
	ApplyEagle bool                 `json:"apply_eagle"`
	Exists     []string             `json:"exists"`
	Extra      [][2]any             `json:"extra"`
	Find       answerOr[findAnswer] `json:"find"`

	Lookup     *answerOr[lookupAnswer] `json:"lookup"`
	LookupMask *answerOr[[]*string]    `json:"lookup_mask"`
	Load       *answerOr[[]string]     `json:"load"`
	Missing    [][2]int                `json:"missing"`
	Keys       *answerOr[keysAnswer]   `json:"keys"`
	Store      answerOr[storeAnswer]   `json:"store"`
}

// TestVectors shows that kvfs answers as the engine's own coordinator does (C5 to C9, C11, C12,
// C13, C14, C23) and refuses what it refuses (C2 to C4, C10, C24). KVFS_VECTORS names another
// file of either schema, from here or from the root of the module.
func TestVectors(t *testing.T) {
	files := []string{"testdata/hybrid_hits.jsonl", "testdata/validate.jsonl"}
	if other := os.Getenv("KVFS_VECTORS"); other != "" {
		if fromRoot := filepath.Join("../..", other); !filepath.IsAbs(other) && !exists(other) && exists(fromRoot) {
			other = fromRoot
		}
		files = []string{other}
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) { testFile(t, name) })
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func testFile(t *testing.T, name string) {
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	all, agree := 0, 0
	for lines := json.NewDecoder(f); lines.More(); all++ {
		var line json.RawMessage
		must(t, lines.Decode(&line))
		if id, err := checkLine(line); err != nil {
			t.Errorf("vector %d, %s: %v", all+1, id, err)
		} else {
			agree++
		}
	}
	if all == 0 {
		t.Error("no vectors")
	}
	summary := fmt.Sprintf("%s: %d of %d vectors agree", filepath.Base(name), agree, all)
	t.Log(summary)
	fmt.Println(summary)
}

// checkLine checks one vector, of the schema that its fields tell.
func checkLine(line []byte) (id string, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return "", err
	}
	switch {
	case fields["fn"] != nil:
		var v validateVector
		if err := strict(line, &v); err != nil {
			return string(fields["id"]), err
		}
		return v.ID, v.check()
	case fields["find"] != nil:
		var v hitVector
		if err := strict(line, &v); err != nil {
			return string(fields["id"]), err
		}
		return v.ID, v.check()
	}
	return string(fields["id"]), errors.New("of no known schema")
}

// presence is what is stored, by group and hash.
type presence struct {
	hashes []string
	set    map[[2]any]bool
	asked  map[[2]int]int
	err    error
}

func newPresence(hashes, exists []string, extra [][2]any, groups int) (*presence, error) {
	if exists == nil {
		return nil, nil
	}
	p := &presence{hashes: hashes, set: map[[2]any]bool{}, asked: map[[2]int]int{}}
	if len(exists) != groups {
		return nil, fmt.Errorf("existence of %d groups, %d are configured", len(exists), groups)
	}
	for g, bits := range exists {
		if len(bits) != len(hashes) {
			return nil, fmt.Errorf("existence of %d units, there are %d", len(bits), len(hashes))
		}
		for u, bit := range bits {
			if bit != '0' && bit != '1' {
				return nil, fmt.Errorf("existence %q", bits)
			}
			if bit == '1' {
				p.set[[2]any{g, hashes[u]}] = true
			}
		}
	}
	for _, e := range extra {
		g, ok := e[0].(float64)
		if !ok {
			return nil, fmt.Errorf("extra group %v", e[0])
		}
		p.set[[2]any{int(g), e[1]}] = true
	}
	return p, nil
}

func (p *presence) has(g, u int) bool { return p.set[[2]any{g, p.hashes[u]}] }

// exists returns p as a search asks for it; nil for receivers. It notes questions that are
// out of range or come twice.
func (p *presence) exists(groups int) Exists {
	if p == nil {
		return nil
	}
	clear(p.asked)
	return func(g, u int) bool {
		if g < 0 || g >= groups || u < 0 || u >= len(p.hashes) {
			p.err = fmt.Errorf("asked for group %d, unit %d", g, u)
			return false
		}
		if p.asked[[2]int{g, u}]++; p.asked[[2]int{g, u}] > 1 {
			p.err = fmt.Errorf("asked twice for group %d, unit %d", g, u)
		}
		return p.has(g, u)
	}
}

func (v *hitVector) check() error {
	spec := v.Cfg.spec()
	c, err := build(spec.withDefaults())
	if err != nil {
		if _, refusal := New(spec); refusal != nil && v.Find.err != "" {
			return nil // neither side has such a coordinator
		}
		return err
	}
	p, err := newPresence(v.Hashes, v.Exists, v.Extra, len(spec.Groups))
	if err != nil {
		return err
	}
	if err := errors.Join(v.checkNew(spec), v.checkFind(c, p), v.checkStore(c)); err != nil {
		return err
	}
	if p == nil {
		if v.Lookup != nil || v.Load != nil || v.Keys != nil {
			return errors.New("a receiver with a lookup")
		}
		return nil
	}
	if v.Lookup == nil || v.Load == nil {
		return errors.New("no lookup or load to compare with")
	}
	if v.Lookup.err != "" {
		if refused(v.Cfg) {
			return nil // checkNew has seen it
		}
		return fmt.Errorf("lookup: accepted, want %s %s", v.Lookup.err, v.Lookup.msg)
	}
	return errors.Join(v.checkLookup(c, p), v.checkLookupMask(c), v.checkKeys(c, p), p.err)
}

// checkNew checks that New refuses exactly the configs that it should, told here in
// another way than there.
func (v *hitVector) checkNew(spec Spec) error {
	_, err := New(spec)
	if want := refused(v.Cfg); (err != nil) != want {
		return fmt.Errorf("New: refused %v, want %v: %w", err != nil, want, err)
	}
	return nil
}

// refused reports whether New has to refuse a config whose sizes are right.
func refused(cfg vectorConfig) bool {
	fine, sparse, flagged, aligned := false, false, cfg.Eagle, 0
	for _, g := range cfg.Groups {
		mamba := g.K == Mamba
		align := mamba && (g.Mode == "" || g.Mode == "align")
		fine = fine || align && g.BS > cfg.HBS
		sparse = sparse || mamba || g.K == SlidingWindow || g.K == WindowMLA
		flagged = flagged && !g.Eg
		if align && aligned == 0 {
			aligned = g.BS
		}
	}
	if aligned == 0 {
		aligned = cfg.HBS
	}
	if cfg.Ret != nil && (*cfg.Ret%cfg.SBS != 0 || *cfg.Ret < 0 || *cfg.Ret > 0 && !sparse) {
		return true
	}
	for _, g := range cfg.Groups {
		switch g.K {
		case Mamba:
			if g.BS != aligned {
				return true
			}
		case SlidingWindow, WindowMLA:
			if fine && g.BS > cfg.HBS {
				return true
			}
		case ChunkedLocal:
			if g.BS != cfg.SBS || fine && g.BS > cfg.HBS || g.Chunk%g.BS != 0 || flagged || g.Eg {
				return true
			}
		}
	}
	return false
}

func (v *hitVector) checkFind(c *Coordinator, p *presence) error {
	if v.Find.err == "" || v.Find.err == "IndexError" {
		return checkFound(c, v.MaxLen, len(v.Hashes), v.ApplyEagle, p, v.Find)
	}
	if !refused(v.Cfg) { // otherwise checkNew has seen it
		return fmt.Errorf("find: accepted, want %s %s", v.Find.err, v.Find.msg)
	}
	return nil
}

// checkFound compares the answer of a search. Where the engine's own crashes, beyond the hashes and
// below 0, kvfs has an error. No groups are no hit, not an error (C18).
func checkFound(c *Coordinator, maxLen, hashes int, eagle bool, p *presence, want answerOr[findAnswer]) error {
	groups := len(c.spec.Groups)
	hit, masks, err := c.Find(maxLen, hashes, eagle, p.exists(groups))
	if want.err != "" && groups > 0 {
		if !errors.Is(err, ErrRange) {
			return fmt.Errorf("find: %w, want a range error", err)
		}
		return nil
	}
	if got, want := fmt.Sprint(hit, texts(masks)), fmt.Sprint(want.value.Hit, want.value.Masks); err != nil || got != want {
		return fmt.Errorf("find: %s, %w, want %s", got, err, want)
	}
	return nil
}

func (v *hitVector) checkLookup(c *Coordinator, p *presence) error {
	hit := c.Lookup(v.NumTokens, len(v.Hashes), p.exists(len(v.Cfg.Groups)))
	if hit.Tokens != v.Lookup.value.Hit || hit.Capped != v.Lookup.value.Capped {
		return fmt.Errorf("lookup: %d %v, want %d %v", hit.Tokens, hit.Capped, v.Lookup.value.Hit, v.Lookup.value.Capped)
	}
	load, err := c.Load(hit.Tokens)
	if err != nil {
		return err
	}
	want := v.Load.value
	if v.Load.err == "IndexError" && len(v.Cfg.Groups) == 0 {
		want = nil // no groups have no masks (C18)
	} else if v.Load.err != "" {
		return fmt.Errorf("load: accepted, want %s %s", v.Load.err, v.Load.msg)
	}
	if !slices.Equal(texts(load), want) || !slices.Equal(texts(hit.Load), want) {
		return fmt.Errorf("load: %v and %v, want %v", texts(load), texts(hit.Load), want)
	}
	return nil
}

// checkLookupMask compares what a search asks for in coarse mode.
func (v *hitVector) checkLookupMask(c *Coordinator) error {
	if c.fine || v.LookupMask == nil {
		if c.fine && v.LookupMask == nil {
			return nil
		}
		return fmt.Errorf("lookup mask: fine mode is %v, want %v", c.fine, v.LookupMask == nil)
	}
	length := v.NumTokens / c.align * c.align
	got := make([]*string, len(c.spec.Groups))
	for _, cl := range c.classes {
		if cl.keep.all {
			continue
		}
		mask := make([]bool, length/cl.block)
		for i := range mask {
			mask[i] = cl.keep.has(i)
		}
		for _, g := range cl.groups {
			text := textOf(mask)
			got[g] = &text
		}
	}
	if v.LookupMask.err != "" {
		return fmt.Errorf("lookup mask: accepted, want %s %s", v.LookupMask.err, v.LookupMask.msg)
	}
	return sameMasks("lookup mask", got, v.LookupMask.value)
}

// checkKeys compares which keys are fetched, and which of these are not there. kvfs then names
// the keys that the search found instead.
func (v *hitVector) checkKeys(c *Coordinator, p *presence) error {
	groups := len(v.Cfg.Groups)
	load, err := c.Load(v.Lookup.value.Hit)
	if err != nil {
		return err
	}
	fetch := func(cached int, exists Exists) [][]int {
		return c.Fetch(v.Lookup.value.Hit, cached, len(v.Hashes), load, exists)
	}
	if v.Keys != nil {
		switch {
		case v.Keys.err == "ZeroDivisionError":
			if n := slices.Concat(fetch(0, p.exists(groups))...); len(n) != 0 {
				return fmt.Errorf("keys: %v, want none", n)
			}
		case v.Keys.err != "":
			return fmt.Errorf("keys: accepted, want %s %s", v.Keys.err, v.Keys.msg)
		default:
			got := fetch(v.Keys.value.Cached, nil)
			for _, units := range got {
				for i, u := range units {
					units[i] = slices.Index(v.Hashes, v.Hashes[u])
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(v.Keys.value.Units) {
				return fmt.Errorf("keys: %v, want %v", got, v.Keys.value.Units)
			}
		}
	}
	var missing [][2]int
	for g, units := range fetch(0, nil) {
		for _, u := range units {
			if !p.has(g, u) {
				missing = append(missing, [2]int{g, u})
			}
		}
	}
	if !slices.Equal(missing, v.Missing) {
		return fmt.Errorf("missing: %v, want %v", missing, v.Missing)
	}
	if refused(v.Cfg) {
		return nil
	}
	for g, units := range fetch(0, p.exists(groups)) {
		for _, u := range units {
			if !p.has(g, u) {
				return fmt.Errorf("names group %d, unit %d, which is not there", g, u)
			}
		}
	}
	return nil
}

func (v *hitVector) checkStore(c *Coordinator) error {
	if v.Store.err != "" {
		_, err := c.Store(v.Store.value.Len, v.Store.value.Start, -1)
		if err == nil && !refused(v.Cfg) {
			return fmt.Errorf("store: accepted, want %s %s", v.Store.err, v.Store.msg)
		}
		return nil
	}
	return checkStored(c, v.Store.value)
}

func checkStored(c *Coordinator, want storeAnswer) error {
	prompt := -1
	if want.Prompt != nil {
		prompt = *want.Prompt
	}
	stored, err := c.Store(want.Len, want.Start, prompt)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	got := make([]*string, len(stored))
	for i, s := range stored {
		if s.Start < 0 || s.Start > s.End || s.Mask != nil && len(s.Mask) != s.End-s.Start {
			return fmt.Errorf("store: %+v", s)
		}
		if s.Mask != nil {
			text := textOf(s.Mask)
			got[i] = &text
		}
	}
	return sameMasks("store", got, want.Masks)
}

func sameMasks(what string, got, want []*string) error {
	same := slices.EqualFunc(got, want, func(a, b *string) bool {
		return a == nil && b == nil || a != nil && b != nil && *a == *b
	})
	if !same {
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		return fmt.Errorf("%s: %s, want %s", what, g, w)
	}
	return nil
}

func textOf(mask []bool) string {
	text := make([]byte, len(mask))
	for i, one := range mask {
		text[i] = '0' + byte(boolInt(one))
	}
	return string(text)
}

func texts(masks [][]bool) []string {
	var out []string
	for _, mask := range masks {
		out = append(out, textOf(mask))
	}
	return out
}

// Find is the search behind Lookup: the longest hit of at most maxTokens. It fails where
// it has to look beyond the hashes. Masks are as the search leaves them; use Load.
// A nil exists says that everything is there.
func (c *Coordinator) Find(maxTokens, numHashes int, eagle bool, exists Exists) (tokens int, masks [][]bool, err error) {
	h := c.spec.HashBlockSize
	if maxTokens < 0 || maxTokens > MaxUnits*h || numHashes < 0 {
		return 0, nil, fmt.Errorf("hybrid: max_len (%d) must be in 0..%d, and the number of hashes (%d) not be negative: %w",
			maxTokens, MaxUnits*h, numHashes, ErrRange)
	}
	p := newProbe(c, min(numHashes, maxTokens/h), exists)
	defer p.release()
	tokens = p.find(maxTokens, eagle)
	if p.beyond {
		return 0, nil, fmt.Errorf("hybrid: max_len (%d) is beyond %d hash blocks of %d: %w", maxTokens, numHashes, h, ErrRange)
	}
	return tokens, p.masks(), nil
}
