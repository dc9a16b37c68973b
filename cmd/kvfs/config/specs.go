package config

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Spec describes the attention groups of one model. Which values fit each other,
// hybrid.New says.
type Spec struct {
	HashBlockSize          int         `kvfs:"hash_block_size" example:"16" help:"Tokens to a hash. It must be given, and divide the blocks of all groups."`
	SchedulerBlockSize     int         `kvfs:"scheduler_block_size" example:"16" auto:"the least one" help:"Tokens by which the engine schedules: a common multiple of all blocks."`
	CacheBlockSize         int         `kvfs:"cache_block_size" example:"16" auto:"that of groups of kind mamba and mode align, else hash_block_size" help:"The block_size of the engine, in tokens. Mamba groups must have it."`
	Eagle                  bool        `kvfs:"eagle" default:"false" help:"The model has draft layers."`
	RetentionInterval      *int        `kvfs:"retention_interval" example:"4096" auto:"store all that may be needed" help:"Tokens between the places of a prompt that are worth storing for groups that look back a little. Zero is a value of its own."`
	PrefillContextParallel int         `kvfs:"prefill_context_parallel" default:"1" help:"Ranks that share a prompt. With several groups it must be 1."`
	DecodeContextParallel  int         `kvfs:"decode_context_parallel" default:"1" help:"Ranks that share a context. With several groups it must be 1."`
	Groups                 []SpecGroup `kvfs:"groups" help:"The groups of layers that share a block table, in the engine's order."`
}

// SpecGroup describes one group of layers.
type SpecGroup struct {
	Name      string `kvfs:"name" check:"component" example:"0" auto:"its position" help:"As it stands in the names of its blocks."`
	Kind      string `kvfs:"kind" example:"swa" help:"How its layers look back; it must be given. One of full, mla, rswa, sink, swa (sliding window), swa_mla, chunk (chunked local attention), or mamba."`
	BlockSize int    `kvfs:"block_size" example:"16" help:"Tokens to a block. It must be given."`
	Window    int    `kvfs:"window" example:"1024" default:"0" help:"Tokens of the window, of swa and swa_mla."`
	Chunk     int    `kvfs:"chunk" default:"0" help:"Tokens of a chunk, of chunk."`
	Mode      string `kvfs:"mode" example:"align" auto:"align" help:"Of mamba: align, all, or none."`
	Eagle     bool   `kvfs:"eagle" default:"false" help:"They are draft layers."`
	Ranks     int    `kvfs:"ranks" min:"0" max:"1024" default:"0" help:"How many ranks keep a part of each block. Zero means as many as the request says."`
	Variant   int    `kvfs:"variant" default:"0" help:"Groups that differ in it are not taken together."`
	Uniform   bool   `kvfs:"uniform" default:"false" help:"They are wrapped in a uniform type spec."`
}

// Hybrid returns s in the form of the search for the longest hit.
func (s Spec) Hybrid() hybrid.Spec {
	var groups []hybrid.Group
	for _, g := range s.Groups {
		groups = append(groups, hybrid.Group{
			Name: g.Name, Kind: hybrid.Kind(g.Kind), BlockSize: g.BlockSize, Window: g.Window, Chunk: g.Chunk,
			Mode: g.Mode, Variant: g.Variant, Eagle: g.Eagle, Uniform: g.Uniform, Ranks: g.Ranks,
		})
	}
	return hybrid.Spec{
		HashBlockSize: s.HashBlockSize, SchedulerBlockSize: s.SchedulerBlockSize, CacheBlockSize: s.CacheBlockSize,
		Eagle: s.Eagle, Retention: s.RetentionInterval,
		PrefillContext: s.PrefillContextParallel, DecodeContext: s.DecodeContextParallel, Groups: groups,
	}
}

// validateSpecs checks that each spec is one that look-ups can obey. All reasons
// against one stand in one violation. A spec with a violation in it is left out: what
// New has to say about the rest of it would mislead.
func (l *loader) validateSpecs() {
	bad := slices.Sorted(maps.Keys(l.bad))
	for n, name := range slices.Sorted(maps.Keys(l.cfg.Specs)) {
		at := joinName("specs", name)
		if n == maxSpecs {
			l.fail(l.cfg.Origin(at), "specs", violate(ErrRange, "there are %d: want at most %d", len(l.cfg.Specs), maxSpecs))
			return
		}
		if i, _ := slices.BinarySearch(bad, at+"."); !l.good(at) || i < len(bad) && strings.HasPrefix(bad[i], at+".") {
			continue
		}
		if _, err := hybrid.New(l.cfg.Specs[name].Hybrid()); err != nil {
			l.fail(l.cfg.Origin(at), at, violate(ErrInvalid, "%v", err))
		}
	}
}

// Limits of specs, which are those of .kvfs/specs, too.
const (
	maxSpecs    = 1024
	maxSpecName = 128 // bytes
)

// checkSpecName wants the name of a spec, which may be that of a model, with slashes.
func checkSpecName(name string) error {
	odd := func(r rune) bool { return !strconv.IsPrint(r) }
	if name == "" || len(name) > maxSpecName || !utf8.ValidString(name) || strings.ContainsFunc(name, odd) {
		return violate(ErrInvalid, "%q cannot name a spec: want 1 to %d bytes, all of them printable", name, maxSpecName)
	}
	return nil
}

// checkComponent wants the name of a spec's group, which becomes a part of paths below the
// mount.
func checkComponent(s string) error {
	if len(s) > block.MaxName || path.Clean("/"+s) != "/"+s || strings.ContainsRune(s, 0) {
		return violate(ErrInvalid, "%q cannot stand in a path: want 1 to %d bytes without NUL, empty components, . and ..", s, block.MaxName)
	}
	return nil
}
