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
	Name      string // as in the names of its blocks; empty: its position, in decimal
	Kind      Kind
	BlockSize int    // B, tokens
	Window    int    // W, tokens: of sliding windows; of other kinds it is recorded only
	Chunk     int    // C, tokens: of ChunkedLocal
	Mode      string // of Mamba: "align" (also if empty), "all", "none"
	Variant   int    // layout: groups that differ in it are not merged
	Eagle     bool   // draft layers, whose last block has to be computed again
	Uniform   bool   // wrapped in a uniform type spec
	Ranks     int    // how many ranks keep a part of each block. 0: as many as the model has.
}

// Spec describes a model's cache.
type Spec struct {
	HashBlockSize      int // H, tokens
	SchedulerBlockSize int // S, tokens. 0: the least common multiple of the groups' blocks and H.

	// CacheBlockSize is block_size of the engine's cache config, in tokens; Mamba groups
	// must have the same. 0: the block size of the first Mamba group of mode "align",
	// HashBlockSize if there is none.
	CacheBlockSize int

	Eagle          bool
	Retention      *int // store interval in tokens of what looks back a little; nil: dense
	PrefillContext int  // context parallel sizes; 0 means 1
	DecodeContext  int

	// CapacityOnly is set for an engine that lends memory and neither looks up nor stores.
	// Nothing else of the Spec is then checked or kept, and nothing is ever a hit.
	CapacityOnly bool

	// Groups may be empty, which is a cache of nothing, but nil is refused: it is
	// a cache config that was forgotten.
	Groups []Group
}

// withDefaults returns a copy of s with the zero values filled in that have a default. It
// works on any Spec, also on those that check refuses.
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
