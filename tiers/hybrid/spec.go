package hybrid

import "strconv"

// Kind is how the layers of a group look back.
type Kind string

// The kinds. The first four look at everything before.
const (
	Full          Kind = "full"
	MLA           Kind = "mla"
	RSWA          Kind = "rswa"
	Sink          Kind = "sink"
	SlidingWindow Kind = "swa"
	WindowMLA     Kind = "swa_mla"
	ChunkedLocal  Kind = "chunk"
	Mamba         Kind = "mamba"
	Cross         Kind = "cross" // never supported
)

// The modes of Mamba groups: at which tokens states are kept.
const (
	modeAlign = "align"
	modeAll   = "all"
	modeNone  = "none"
)

// Limits of a Spec and of a question.
const (
	MaxSpecs     = 1024 // that one daemon has
	MaxName      = 128  // bytes of the name of a Spec
	MaxRanks     = 1024
	MaxGroups    = 64
	MaxBlockSize = 1 << 20 // tokens, of every block size
	MaxWindow    = 1 << 30 // tokens, of windows and of attention chunks
	MaxUnits     = 1 << 22 // hash blocks of a prompt; those beyond are not looked at
)

// fullLike reports whether k looks at everything before.
func (k Kind) fullLike() bool {
	return k == Full || k == MLA || k == RSWA || k == Sink
}

// window reports whether k looks back over a window that moves with each token.
func (k Kind) window() bool { return k == SlidingWindow || k == WindowMLA }

// known reports whether k is one of the kinds above.
func (k Kind) known() bool {
	return k.fullLike() || k.window() || k == ChunkedLocal || k == Mamba || k == Cross
}

// Group describes the layers that share one block table.
type Group struct {
	Name      string `json:"name" kvfs:"name" check:"component" example:"0" auto:"its position" help:"As it stands in the names of its blocks."`
	Kind      Kind   `json:"kind" kvfs:"kind" example:"swa" help:"How its layers look back; it must be given. One of full, mla, rswa, sink, swa (sliding window), swa_mla, chunk (chunked local attention), or mamba."`
	BlockSize int    `json:"block_size" kvfs:"block_size" example:"16" help:"Tokens to a block. It must be given."`
	Window    int    `json:"window,omitzero" kvfs:"window" example:"1024" default:"0" help:"Tokens of the window, of swa and swa_mla."`
	Chunk     int    `json:"chunk,omitzero" kvfs:"chunk" default:"0" help:"Tokens of a chunk, of chunk."`
	Mode      string `json:"mode,omitzero" kvfs:"mode" example:"align" auto:"align" help:"Of mamba: align, all, or none."`
	Eagle     bool   `json:"eagle" kvfs:"eagle" default:"false" help:"They are draft layers."`
	Ranks     int    `json:"ranks,omitzero" kvfs:"ranks" min:"0" max:"1024" default:"0" help:"How many ranks keep a part of each block. Zero means as many as the request says."`
	Variant   int    `json:"variant" kvfs:"variant" default:"0" help:"Groups that differ in it are not taken together."`
	Uniform   bool   `json:"uniform" kvfs:"uniform" default:"false" help:"They are wrapped in a uniform type spec."`
}

// Spec describes a model's cache. Control files and commands use its JSON form. The keys of the tag
// kvfs are those of the configuration. The package of the configuration explains the other tags.
type Spec struct {
	HashBlockSize      int  `json:"hash_block_size" kvfs:"hash_block_size" example:"16" help:"Tokens to a hash. It must be given, and divide the blocks of all groups."`
	SchedulerBlockSize int  `json:"scheduler_block_size" kvfs:"scheduler_block_size" example:"16" auto:"the least one" help:"Tokens by which the engine schedules: a common multiple of all blocks."`
	CacheBlockSize     int  `json:"cache_block_size" kvfs:"cache_block_size" example:"16" auto:"that of groups of kind mamba and mode align, else hash_block_size" help:"The block_size of the engine, in tokens. Mamba groups must have it."`
	Eagle              bool `json:"eagle" kvfs:"eagle" default:"false" help:"The model has draft layers."`
	Retention          *int `json:"retention_interval,omitzero" kvfs:"retention_interval" example:"4096" auto:"store all that may be needed" help:"Tokens between the places of a prompt that are worth storing for groups that look back a little. Zero is a value of its own."`
	PrefillContext     int  `json:"prefill_context_parallel" kvfs:"prefill_context_parallel" default:"1" help:"Ranks that share a prompt. With several groups it must be 1."`
	DecodeContext      int  `json:"decode_context_parallel" kvfs:"decode_context_parallel" default:"1" help:"Ranks that share a context. With several groups it must be 1."`

	// CapacityOnly is set for an engine that lends memory and neither looks up nor stores. The rest
	// of the Spec is then neither checked nor kept, and nothing is ever a hit.
	CapacityOnly bool `json:"-"`

	// Groups may be empty, which is a cache of nothing. nil is refused: the cache config was
	// forgotten.
	Groups []Group `json:"groups" kvfs:"groups" help:"The groups of layers that share a block table, in the engine's order."`
}

// withDefaults returns a copy of s with the defaults filled in. It works on any Spec, also on those
// that check refuses.
func (s Spec) withDefaults() Spec {
	if s.CapacityOnly {
		return Spec{HashBlockSize: 1, SchedulerBlockSize: 1, CacheBlockSize: 1, PrefillContext: 1,
			DecodeContext: 1, CapacityOnly: true, Groups: []Group{}}
	}
	if s.Groups != nil {
		s.Groups = append(make([]Group, 0, len(s.Groups)), s.Groups...)
	}
	if s.Retention != nil {
		interval := *s.Retention
		s.Retention = &interval
	}
	sizes := []int{s.HashBlockSize}
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Name == "" {
			g.Name = strconv.Itoa(i)
		}
		if g.Kind == Mamba && g.Mode == "" {
			g.Mode = modeAlign
		}
		if g.Kind == Mamba && g.Mode == modeAlign && s.CacheBlockSize == 0 {
			s.CacheBlockSize = g.BlockSize
		}
		sizes = append(sizes, g.BlockSize)
	}
	if s.CacheBlockSize == 0 {
		s.CacheBlockSize = s.HashBlockSize
	}
	if s.SchedulerBlockSize == 0 {
		s.SchedulerBlockSize = lcm(sizes...)
	}
	if s.PrefillContext == 0 {
		s.PrefillContext = 1
	}
	if s.DecodeContext == 0 {
		s.DecodeContext = 1
	}
	return s
}
