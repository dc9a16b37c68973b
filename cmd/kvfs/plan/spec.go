package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

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
