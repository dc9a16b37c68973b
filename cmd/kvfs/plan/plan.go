package plan

import (
	"errors"
	"fmt"
	"math"
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

// context sets the length of a request.
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

// ranksNotes notes what several ranks store.
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

// check returns all faults of the options.
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
