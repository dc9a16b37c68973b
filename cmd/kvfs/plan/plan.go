package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Options says how a model is served. A zero value means the default, except in numbers of ranks.
type Options struct {
	TP, PP      int    // ranks of tensor and pipeline parallelism
	KVDtype     string // type of keys and values; empty or auto: the type of the weights
	StateDtype  string // type of recurrent states, likewise
	BlockTokens int    // tokens of a stored block; 0: the default of the engine
	Context     int    // tokens of a request; 0: the most that the model takes
	Engine      string // one of the constants; empty: no particular engine
	Load        Load
}

// Load is a workload. If rate and concurrency are zero, there is none.
type Load struct {
	Concurrency int     // requests at a time; 0: follows from the rate
	Rate        float64 // requests a second
	MeanPrompt  int     // tokens
	MeanOutput  int     // tokens
	ReuseWindow time.Duration
	PrefixShare float64 // part of a prompt that was stored before; 0 to 1
}

// Bytes are stored bytes: of all ranks together, and of the one rank that stores most.
type Bytes struct {
	Whole int64 `json:"whole"`
	Rank  int64 `json:"rank"`
}

// Layers is what one class of layers stores.
type Layers struct {
	Kind       hybrid.Kind `json:"kind"`
	Layers     int         `json:"layers"`
	KVHeads    int         `json:"kv_heads,omitempty"`
	HeadDim    int         `json:"head_dim,omitempty"`
	Latent     int         `json:"latent,omitempty"`
	Window     int         `json:"window,omitempty"`
	Chunk      int         `json:"chunk,omitempty"`
	State      string      `json:"state,omitempty"`
	TokenBytes int64       `json:"token_bytes,omitempty"` // of all its layers and ranks
	StateBytes int64       `json:"state_bytes,omitempty"` // likewise
}

// Plan is the result of Make.
type Plan struct {
	ModelType  string   `json:"model_type"`
	NumLayers  int      `json:"num_layers"`
	TP         int      `json:"tp"`
	PP         int      `json:"pp"`
	KVDtype    string   `json:"kv_dtype"`
	StateDtype string   `json:"state_dtype,omitempty"`
	Engine     string   `json:"engine,omitempty"`
	Context    int      `json:"context"`
	Layers     []Layers `json:"layers"`

	Token       Bytes   `json:"token"`           // bytes that a token adds
	BeyondToken Bytes   `json:"token_beyond"`    // the part of Token in layers without window
	State       *Bytes  `json:"state,omitempty"` // of all recurrent layers
	BlockTokens int     `json:"block_tokens"`    // 0: a file is a whole request
	Block       *Bytes  `json:"block,omitempty"` // of that many tokens, without states and padding
	Request     Bytes   `json:"request"`         // of Context tokens, windows bounded
	Groups      []Group `json:"groups"`          // the files

	Load     []Step       `json:"load,omitempty"`
	Settings Settings     `json:"settings"`
	Spec     *hybrid.Spec `json:"spec,omitempty"`
	Notes    []string     `json:"assumptions"`
	noSpec   error        // why there is no spec, if one was tried
}

// tooMuch limits all figures, so that sums of them stay within 63 bits.
const tooMuch = math.MaxInt64 / 64

// Make computes a Plan. Its error lists all faults of the options.
func Make(m *Model, o Options) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Plan{ModelType: m.Type, NumLayers: m.Layers, TP: o.TP, PP: o.PP, Engine: o.Engine, Context: o.Context}
	p.Notes = append(p.Notes, m.Notes...)
	z, err := p.sizer(m, &o)
	if err != nil {
		return nil, err
	}
	if err := p.context(m); err != nil {
		return nil, err
	}
	p.BlockTokens = o.BlockTokens
	if p.BlockTokens == 0 {
		p.BlockTokens = blockTokens[o.Engine]
	}
	p.sizes(z)
	if err := p.bound(); err != nil {
		return nil, err
	}
	if p.Groups, err = z.layout(o.Engine, p.BlockTokens, &p.Notes); err != nil {
		return nil, err
	}
	if o.Engine == LlamaCpp {
		p.slots(z)
	}
	p.Spec = p.spec()
	return p, p.tiers(z, &o)
}

// sizer returns the sizer of a model. It checks that sizes can be computed.
func (p *Plan) sizer(m *Model, o *Options) (*sizer, error) {
	z := &sizer{model: m, tp: o.TP, pp: o.PP}
	var errs []error
	var err error
	if z.kv, err = kvDtype(m, o, &p.Notes); err != nil {
		errs = append(errs, fmt.Errorf("--kv-dtype: %w", err))
	}
	if z.recurrent() {
		if z.conv, z.rs, err = stateDtypes(m, o, &p.Notes); err != nil {
			errs = append(errs, fmt.Errorf("--state-dtype: %w", err))
		}
		p.StateDtype = z.rs.name
	}
	p.KVDtype = z.kv.name
	errs = append(errs, z.check())
	return z, errors.Join(errs...)
}

func (p *Plan) context(m *Model) error {
	switch {
	case p.Context == 0 && m.MaxContext == 0:
		return errors.New("--context: the config has no max_position_embeddings; give the tokens of a request")
	case p.Context == 0:
		p.Context = m.MaxContext
		p.Notes = append(p.Notes, fmt.Sprintf("a request has %d tokens, which is max_position_embeddings", p.Context))
	case m.MaxContext > 0 && p.Context > m.MaxContext:
		p.Notes = append(p.Notes, fmt.Sprintf("the context is longer than max_position_embeddings (%d)", m.MaxContext))
	}
	return nil
}

// sizes computes the figures that do not depend on files.
func (p *Plan) sizes(z *sizer) {
	for _, c := range z.model.Classes {
		s, n := c.Shape, z.copies(c.Shape)*int64(len(c.Layers))
		p.Layers = append(p.Layers, Layers{
			Kind: s.Kind, Layers: len(c.Layers), KVHeads: s.KVHeads, HeadDim: s.HeadDim, Latent: s.Latent,
			Window: s.Window, Chunk: s.Chunk, State: s.State.Kind, TokenBytes: z.token(s) * n, StateBytes: z.state(s) * n,
		})
	}
	both := func(of func(Shape) int64) Bytes { return Bytes{Whole: z.sum(of), Rank: z.largest(of)} }
	p.Token = both(z.token)
	p.BeyondToken = both(func(s Shape) int64 {
		if s.Window > 0 || s.Chunk > 0 {
			return 0
		}
		return z.token(s)
	})
	if z.recurrent() {
		state := both(z.state)
		p.State = &state
	}
	if p.BlockTokens > 0 {
		p.Block = &Bytes{Whole: p.Token.Whole * int64(p.BlockTokens), Rank: p.Token.Rank * int64(p.BlockTokens)}
	}
	p.Request = both(func(s Shape) int64 { return z.request(s, p.Context) })
	p.ranksNotes(z)
}

func (p *Plan) ranksNotes(z *sizer) {
	for _, c := range z.model.Classes {
		switch s := c.Shape; {
		case z.tp == 1:
		case s.Kind == hybrid.MLA:
			p.Notes = append(p.Notes, "latent rows are the same on all ranks of --tp, and counted once for all of them")
		case s.KVHeads > 0 && s.KVHeads < z.tp:
			p.Notes = append(p.Notes, fmt.Sprintf("%d ranks share %d key/value heads: each head is kept, and stored, %d times", z.tp, s.KVHeads, z.tp/s.KVHeads))
			return
		}
	}
}

// request returns the bytes that a rank stores for a request in one layer.
func (z *sizer) request(s Shape, tokens int) int64 {
	return z.token(s)*int64(s.reach(tokens)) + z.state(s)
}

// bound refuses figures that are too large to compute with.
func (p *Plan) bound() error {
	// In floating point, because the product itself may overflow.
	most := float64(p.Token.Whole) * float64(max(p.Context, p.BlockTokens))
	if p.State != nil {
		most += float64(p.State.Whole)
	}
	if most > tooMuch {
		return fmt.Errorf("%d bytes a token and %d tokens are too large to compute with", p.Token.Whole, max(p.Context, p.BlockTokens))
	}
	return nil
}

// slots sets the files of llama.cpp, each a whole request.
func (p *Plan) slots(z *sizer) {
	g := z.model.Classes[0].group("", 0)
	g.Layers, g.FileBytes = z.model.Layers, p.Request.Whole
	g.Kind, g.Window, g.Chunk = hybrid.Full, 0, 0
	p.Groups = []Group{g}
	p.Notes = append(p.Notes, "a slot's file has all tokens of the request so far, with a header and the tokens themselves, which are not counted",
		"layers with a window are saved up to their window; with --swa-full they are saved whole")
}

func (o *Options) check() error {
	var errs []error
	between := func(flag string, n, low, high int) {
		if n < low || n > high {
			errs = append(errs, fmt.Errorf("%s: got %d, want %d to %d", flag, n, low, high))
		}
	}
	fraction := func(flag string, f, high float64) {
		if !(f >= 0 && f <= high) { // NaN is not
			errs = append(errs, fmt.Errorf("%s: got %v, want 0 to %v", flag, f, high))
		}
	}
	between("--tp", o.TP, 1, maxRanks)
	between("--pp", o.PP, 1, maxRanks)
	between("--block-tokens", o.BlockTokens, 0, hybrid.MaxBlockSize)
	between("--context", o.Context, 0, maxContext)
	between("--concurrency", o.Load.Concurrency, 0, maxConcurrency)
	between("--mean-prompt", o.Load.MeanPrompt, 0, maxContext)
	between("--mean-output", o.Load.MeanOutput, 0, maxContext)
	fraction("--requests-per-second", o.Load.Rate, maxRate)
	fraction("--prefix-share", o.Load.PrefixShare, 1)
	if o.Load.ReuseWindow < 0 {
		errs = append(errs, fmt.Errorf("--reuse-window: got %v, want a time that is not negative", o.Load.ReuseWindow))
	}
	if o.Load.Rate > 0 && o.Load.MeanPrompt == 0 {
		errs = append(errs, errors.New("--mean-prompt is missing: --requests-per-second needs it"))
	}
	if _, known := blockTokens[o.Engine]; !known {
		errs = append(errs, fmt.Errorf("--engine: got %q, want vllm, sglang, lmcache or llama.cpp", o.Engine))
	}
	if o.Engine == LlamaCpp && o.TP*o.PP != 1 {
		errs = append(errs, errors.New("--engine llama.cpp: it saves a slot as one file of one process, so --tp and --pp must be 1"))
	}
	if o.Engine == LlamaCpp && o.BlockTokens > 0 {
		errs = append(errs, errors.New("--block-tokens: llama.cpp has no blocks, its files are whole requests"))
	}
	return errors.Join(errs...)
}

// Limits of the options.
const (
	maxRanks       = 1024
	maxConcurrency = 1e6
	maxRate        = 1e6
)

// sizer computes the bytes that one rank of a model stores.
type sizer struct {
	model    *Model
	tp, pp   int
	kv       dtype
	conv, rs dtype // of the parts of recurrent states
}

// token returns the bytes that one rank stores for a token in a layer of shape s.
func (z *sizer) token(s Shape) int64 {
	switch {
	case !s.grows():
		return 0
	case s.Kind == hybrid.MLA:
		return z.kv.bytes(int64(s.Latent)) // no scales, because a latent row has no heads
	}
	heads := int64(max(s.KVHeads/z.tp, 1))
	return 2 * heads * (z.kv.bytes(int64(s.HeadDim)) + z.kv.scale)
}

// state returns the bytes of a state that one rank stores in a layer of shape s.
func (z *sizer) state(s Shape) int64 {
	if s.grows() {
		return 0
	}
	st, tp := s.State, int64(z.tp)
	steps := int64(st.Kernel - 1)
	var channels, recurrent int64
	switch st.Kind {
	case "mamba1":
		channels = int64(st.Inner) / tp
		recurrent = channels * int64(st.Size)
	case "mamba2":
		groups := int64(st.Groups)
		if groups%tp != 0 {
			groups = tp // each rank stores a whole group
		}
		channels = (int64(st.Heads)*int64(st.HeadDim) + 2*groups*int64(st.Size)) / tp
		recurrent = int64(st.Heads) / tp * int64(st.HeadDim) * int64(st.Size)
	default:
		keys := int64(st.KeyHeads) * int64(st.KeyDim)
		channels = (2*keys + int64(st.Heads)*int64(st.HeadDim)) / tp
		recurrent = int64(st.Heads) / tp * int64(st.HeadDim) * int64(st.KeyDim)
	}
	return z.conv.bytes(channels*steps) + z.rs.bytes(recurrent)
}

// copies returns how many ranks have a part of a layer of shape s to store. A latent row is the same on all ranks of
// tensor parallelism, and is stored once.
func (z *sizer) copies(s Shape) int64 {
	if s.Kind == hybrid.MLA {
		return 1
	}
	return int64(z.tp)
}

// stage returns the pipeline stage of a layer. If the layers do not divide evenly, the first stages have one more.
func (z *sizer) stage(layer int) int {
	base, more := z.model.Layers/z.pp, z.model.Layers%z.pp
	if layer < more*(base+1) {
		return layer / (base + 1)
	}
	return more + (layer-more*(base+1))/base
}

// largest returns the bytes of the stage with most; of returns those of one layer.
func (z *sizer) largest(of func(Shape) int64) int64 {
	sums := make([]int64, z.pp)
	for _, c := range z.model.Classes {
		for _, layer := range c.Layers {
			sums[z.stage(layer)] += of(c.Shape)
		}
	}
	most := sums[0]
	for _, sum := range sums {
		most = max(most, sum)
	}
	return most
}

// sum returns what all ranks store; of returns the bytes of one rank in one layer.
func (z *sizer) sum(of func(Shape) int64) int64 {
	var all int64
	for _, c := range z.model.Classes {
		all += of(c.Shape) * z.copies(c.Shape) * int64(len(c.Layers))
	}
	return all
}

// check returns an error for ranks that the model cannot be split over.
func (z *sizer) check() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf(flag+": "+format, args...))
	}
	m, tp := z.model, z.tp
	if z.pp > m.Layers {
		fail("--pp", "%d stages, the model has %d layers", z.pp, m.Layers)
	}
	if m.Heads%tp != 0 {
		fail("--tp", "%d ranks do not divide %d attention heads", tp, m.Heads)
	}
	for _, c := range m.Classes {
		s := c.Shape
		if s.KVHeads > 0 && s.KVHeads%tp != 0 && tp%s.KVHeads != 0 {
			fail("--tp", "%d ranks and %d key/value heads do not divide each other", tp, s.KVHeads)
		}
		for _, n := range []struct {
			what  string
			count int
		}{{"state heads", s.State.Heads}, {"key heads of the state", s.State.KeyHeads}, {"channels of the state", s.State.Inner}} {
			if n.count%tp != 0 {
				fail("--tp", "%d ranks do not divide %d %s", tp, n.count, n.what)
			}
		}
		if z.kv.scale > 0 && s.Kind == hybrid.MLA {
			fail("--kv-dtype", "%s has a scale of each head, and latent rows have no heads", z.kv.name)
		}
		if row := max(s.HeadDim, s.Latent); z.kv.block && row%32 != 0 {
			fail("--kv-dtype", "%s has blocks of 32 elements, and rows have %d", z.kv.name, row)
		}
	}
	return errors.Join(errs...)
}

// The engines whose files the package knows.
const (
	VLLM     = "vllm"
	SGLang   = "sglang"
	LMCache  = "lmcache"
	LlamaCpp = "llama.cpp"
)

// blockTokens are the tokens of a file by default: the block size of vLLM, the usual page size of SGLang with its
// hierarchical cache, the chunk size of LMCache. A file of llama.cpp is a whole request.
var blockTokens = map[string]int{"": 16, VLLM: 16, SGLang: 64, LMCache: 256, LlamaCpp: 0}

const (
	filePage      = 4096 // vLLM's files are whole pages
	stateKernel   = 16   // vLLM's attention blocks beside states are multiples of it
	chunkHeader   = 28   // bytes before a chunk of LMCache
	sglangPoolSWA = "swa"
)

// Group is the layers of one file, of each block.
type Group struct {
	Name        string      `json:"name"`
	Kind        hybrid.Kind `json:"kind"`
	Layers      int         `json:"layers"`
	Window      int         `json:"window,omitempty"`       // tokens
	Chunk       int         `json:"chunk,omitempty"`        // tokens
	BlockTokens int         `json:"block_tokens,omitempty"` // 0: one for each request
	FileBytes   int64       `json:"file_bytes"`
	Files       int         `json:"files"` // of each block, each of FileBytes
}

// blockBytes returns the bytes stored for a block.
func (g *Group) blockBytes() int64 { return g.FileBytes * int64(g.Files) }

// needed returns how many blocks of the given tokens the next request needs at most.
func (g *Group) needed(tokens float64) float64 {
	if g.BlockTokens == 0 || g.Kind == hybrid.Mamba {
		return 1
	}
	all := tokens / float64(g.BlockTokens)
	switch g.Kind {
	case hybrid.SlidingWindow:
		return min(all, float64(g.Window)/float64(g.BlockTokens)+1) // a window may begin within a block
	case hybrid.ChunkedLocal:
		return min(all, float64(g.Chunk)/float64(g.BlockTokens))
	}
	return all
}

// layout returns the groups of an engine, and adds its assumptions to notes.
func (z *sizer) layout(engine string, block int, notes *[]string) ([]Group, error) {
	switch engine {
	case VLLM:
		return z.vllm(block, notes)
	case SGLang:
		return z.sglang(block, notes), nil
	case LMCache:
		return z.lmcache(block, notes)
	case LlamaCpp:
		return nil, nil // files are requests: Make computes them
	}
	*notes = append(*notes, "no --engine: a block is one file of all ranks and of all layers of a kind; engines group and pad them otherwise")
	var groups []Group
	for i, c := range z.model.Classes {
		g := c.group(fmt.Sprint(i), block)
		g.FileBytes = z.token(c.Shape) * int64(block)
		if !c.Shape.grows() {
			g.FileBytes = z.state(c.Shape)
		}
		g.FileBytes *= z.copies(c.Shape) * int64(len(c.Layers))
		groups = append(groups, g)
	}
	if z.recurrent() {
		*notes = append(*notes, fmt.Sprintf("a state is written for each block of %d tokens, which is the most that there can be", block))
	}
	return groups, nil
}

func (c *Class) group(name string, block int) Group {
	return Group{Name: name, Kind: c.Shape.Kind, Layers: len(c.Layers), Window: c.Shape.Window, Chunk: c.Shape.Chunk, BlockTokens: block, Files: 1}
}

func (z *sizer) recurrent() bool {
	for _, c := range z.model.Classes {
		if !c.Shape.grows() {
			return true
		}
	}
	return false
}

// vllm groups layers like vLLM's hybrid KV cache manager. A group has as many layers as the rarest kind, or as the
// most frequent kind if that has less than half as many more. All blocks have the same size: groups with fewer layers
// are padded, and states are padded to the size of an attention block. A file has the blocks of all ranks. Source:
// vLLM, vllm/v1/core/kv_cache_utils.py.
func (z *sizer) vllm(block int, notes *[]string) ([]Group, error) {
	page, block, err := z.vllmPage(block, notes)
	if err != nil {
		return nil, err
	}
	least, most := len(z.model.Classes[0].Layers), 0
	for _, c := range z.model.Classes {
		least, most = min(least, len(c.Layers)), max(most, len(c.Layers))
	}
	size := least
	if float64(most) < 1.5*float64(least) {
		size = most
	}
	var groups []Group
	tensors := 0 // of the stage and group with most
	for _, c := range z.model.Classes {
		count := (len(c.Layers) + size - 1) / size
		for i := range count {
			g := c.group(fmt.Sprint(len(groups)), block)
			g.Layers = 0
			stages := make([]int, z.pp)
			for j := i; j < len(c.Layers); j += count {
				g.Layers++
				stages[z.stage(c.Layers[j])]++
			}
			for _, n := range stages {
				tensors = max(tensors, n)
			}
			groups = append(groups, g)
		}
	}
	slots := 0
	for i := range groups {
		g := &groups[i]
		g.FileBytes = page * int64(tensors) * int64(z.pp) * z.copies(Shape{Kind: g.Kind})
		g.FileBytes = (g.FileBytes + filePage - 1) / filePage * filePage
		slots += tensors * z.pp
	}
	z.vllmNotes(groups, slots, notes)
	return groups, nil
}

// vllmPage returns the bytes of a block of one layer on one rank, and the tokens of a block.
func (z *sizer) vllmPage(block int, notes *[]string) (page int64, tokens int, err error) {
	var token, state int64
	for _, c := range z.model.Classes {
		switch n := z.token(c.Shape); {
		case !c.Shape.grows():
			state = max(state, z.state(c.Shape))
		case token != 0 && n != token:
			return 0, 0, errors.New("--engine vllm: how it groups attention layers of different sizes is not known")
		default:
			token = n
		}
	}
	if token == 0 {
		return 0, 0, errors.New("--engine vllm: how it groups a model without attention layers is not known")
	}
	if state == 0 {
		return token * int64(block), block, nil
	}
	unit := token * stateKernel
	tokens = int((state+unit-1)/unit) * stateKernel
	if rounded := (block + stateKernel - 1) / stateKernel * stateKernel; rounded > tokens {
		tokens = rounded
	}
	if tokens > hybrid.MaxBlockSize {
		return 0, 0, fmt.Errorf("--engine vllm: blocks of %d tokens, of which attention is as large as a state, are over %d", tokens, hybrid.MaxBlockSize)
	}
	*notes = append(*notes,
		fmt.Sprintf("vLLM raises its blocks to %d tokens, so that attention is as large as a state; the attention backend may round further up", tokens),
		fmt.Sprintf("a state is written for each block of %d tokens, which is the most that there can be", tokens))
	return token * int64(tokens), tokens, nil
}

func (z *sizer) vllmNotes(groups []Group, slots int, notes *[]string) {
	add := func(format string, args ...any) { *notes = append(*notes, fmt.Sprintf(format, args...)) }
	add("a file is one block of vLLM (blocks_per_chunk 1): with more, give --block-tokens as many tokens as a file has")
	if len(groups) > 1 {
		add("groups are in the order of their first layers; config.json, which vLLM writes beside the blocks, lists them as they are")
		layers := 0
		for _, g := range groups {
			layers += g.Layers
		}
		if slots > layers {
			add("%d of %d layer slots are padding, that is %d %% of what is stored", slots-layers, slots, (slots-layers)*100/slots)
		}
	}
	if z.tp > 1 && z.model.Classes[0].Shape.Kind == hybrid.MLA {
		add("vLLM stores latent rows once with the replicated layout; releases without it store them %d times", z.tp)
	}
	if z.pp > 1 {
		add("each stage of --pp is counted as large as the one with most layers")
	}
}

// sglang has one file a page and rank. Layers with a window and states have further files, with the suffixes .swa and .mamba.
func (z *sizer) sglang(block int, notes *[]string) []Group {
	var groups []Group
	at := map[string]int{}
	for _, c := range z.model.Classes {
		pool := ""
		switch c.Shape.Kind {
		case hybrid.SlidingWindow, hybrid.ChunkedLocal:
			pool = sglangPoolSWA
		case hybrid.Mamba:
			pool = "mamba"
		}
		i, there := at[pool]
		if !there {
			i = len(groups)
			at[pool] = i
			g := c.group(pool, block)
			g.Layers, g.Files = 0, int(z.copies(c.Shape))*z.pp
			if pool == "mamba" {
				g.BlockTokens = 0
			}
			groups = append(groups, g)
		}
		g := &groups[i]
		g.Layers += len(c.Layers)
		g.FileBytes += z.stageBytes(c, block)
	}
	if len(groups) == 1 {
		groups[0].Name = "" // one group needs no name
	}
	if z.recurrent() {
		*notes = append(*notes, "one state is written for each request")
	}
	if z.pp > 1 {
		*notes = append(*notes, "each stage of --pp is counted as large as the one with most layers")
	}
	return groups
}

// stageBytes returns the bytes of a block that one rank stores for the layers of c, in the stage with most of them.
func (z *sizer) stageBytes(c Class, block int) int64 {
	only := func(s Shape) int64 {
		switch {
		case s != c.Shape:
			return 0
		case s.grows():
			return z.token(s) * int64(block)
		}
		return z.state(s)
	}
	return z.largest(only)
}

func (z *sizer) lmcache(block int, notes *[]string) ([]Group, error) {
	if z.recurrent() {
		return nil, errors.New("--engine lmcache: how it keeps recurrent states is not known")
	}
	g := z.model.Classes[0].group("", block)
	g.Kind, g.Window, g.Chunk = hybrid.Full, 0, 0
	if z.model.Classes[0].Shape.Kind == hybrid.MLA {
		g.Kind = hybrid.MLA
	}
	g.Layers = z.model.Layers
	g.Files = int(z.copies(Shape{Kind: g.Kind})) * z.pp
	g.FileBytes = z.largest(z.token)*int64(block) + chunkHeader
	*notes = append(*notes, fmt.Sprintf("a chunk begins with %d bytes of its own (save_chunk_meta, the default of LMCache)", chunkHeader),
		"layers with a window are stored whole, like the others")
	if z.pp > 1 {
		*notes = append(*notes, "each stage of --pp is counted as large as the one with most layers")
	}
	return []Group{g}, nil
}

// SpecOf returns the Spec of the files that vLLM writes for a model, served as o says. A group has the number that
// vLLM gives it in the names of its files. SpecOf fails if there is no spec.
func SpecOf(m *Model, o Options) (*hybrid.Spec, error) {
	o.Engine, o.Context = VLLM, 1 // a spec is for prompts of any length
	if !slices.ContainsFunc(m.Classes, func(c Class) bool { return !c.Shape.grows() }) {
		o.KVDtype = "bf16" // of any type if no block is to be as large as a state
	}
	p, err := Make(m, o)
	if err == nil && p.Spec == nil {
		err = cmp.Or(p.noSpec, errors.New("its layers are one group, which looks at everything before"))
	}
	if err != nil {
		return nil, fmt.Errorf("spec of the groups: %w", err)
	}
	return p.Spec, nil
}

// spec returns the Spec of a hybrid model. It returns nil if all layers attend to all tokens, and if the engine does
// not show its groups.
func (p *Plan) spec() *hybrid.Spec {
	if p.Engine != VLLM && p.Engine != "" {
		return nil
	}
	if len(p.Groups) == 1 && (p.Groups[0].Kind == hybrid.Full || p.Groups[0].Kind == hybrid.MLA) {
		return nil
	}
	s := hybrid.Spec{CacheBlockSize: p.Groups[0].BlockTokens}
	for _, g := range p.Groups {
		one := hybrid.Group{Name: g.Name, Kind: g.Kind, BlockSize: g.BlockTokens, Window: g.Window, Chunk: g.Chunk}
		s.Groups = append(s.Groups, one)
	}
	var err error
	s.SchedulerBlockSize, s.HashBlockSize, err = hybrid.BlockSizes(s.CacheBlockSize, s.Groups)
	var c *hybrid.Coordinator
	if err == nil {
		c, err = hybrid.New(s)
	}
	if err != nil {
		p.noSpec = err
		p.Notes = append(p.Notes, fmt.Sprintf("there is no spec of the groups: %v", err))
		return nil
	}
	return c.Spec()
}
