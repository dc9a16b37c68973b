package plan

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Spec is what kvfs specs and the setting specs take, about the groups of a model.
type Spec struct {
	HashBlockSize      int         `json:"hash_block_size"`
	SchedulerBlockSize int         `json:"scheduler_block_size"`
	CacheBlockSize     int         `json:"cache_block_size"`
	Groups             []SpecGroup `json:"groups"`
}

// SpecGroup is a group of a Spec.
type SpecGroup struct {
	Name      string      `json:"name"`
	Kind      hybrid.Kind `json:"kind"`
	BlockSize int         `json:"block_size"`
	Window    int         `json:"window,omitempty"`
	Chunk     int         `json:"chunk,omitempty"`
	Mode      string      `json:"mode,omitempty"`
}

// hybrid returns s as the search takes it.
func (s *Spec) hybrid() hybrid.Spec {
	spec := hybrid.Spec{HashBlockSize: s.HashBlockSize, SchedulerBlockSize: s.SchedulerBlockSize, CacheBlockSize: s.CacheBlockSize}
	for _, g := range s.Groups {
		spec.Groups = append(spec.Groups, hybrid.Group{
			Name: g.Name, Kind: g.Kind, BlockSize: g.BlockSize, Window: g.Window, Chunk: g.Chunk, Mode: g.Mode,
		})
	}
	return spec
}

// spec returns the Spec of a hybrid model, nil where there is none: of models all of whose
// layers look at everything before, and of engines that keep groups to themselves.
func (p *Plan) spec() *Spec {
	if p.Engine != VLLM && p.Engine != "" {
		return nil
	}
	if len(p.Groups) == 1 && (p.Groups[0].Kind == hybrid.Full || p.Groups[0].Kind == hybrid.MLA) {
		return nil
	}
	s := &Spec{CacheBlockSize: p.Groups[0].BlockTokens}
	for _, g := range p.Groups {
		one := SpecGroup{Name: g.Name, Kind: g.Kind, BlockSize: g.BlockTokens, Window: g.Window, Chunk: g.Chunk}
		if g.Kind == hybrid.Mamba {
			one.Mode = "align"
		}
		s.Groups = append(s.Groups, one)
	}
	var err error
	s.SchedulerBlockSize, s.HashBlockSize, err = hybrid.BlockSizes(s.CacheBlockSize, s.hybrid().Groups)
	if err == nil {
		err = s.hybrid().Check()
	}
	if err != nil {
		p.Notes = append(p.Notes, fmt.Sprintf("there is no spec of the groups: %v", err))
		return nil
	}
	return s
}
