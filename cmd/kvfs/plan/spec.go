package plan

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// spec returns the Spec of a hybrid model, nil where there is none: of models all of whose
// layers look at everything before, and of engines that keep groups to themselves.
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
		p.Notes = append(p.Notes, fmt.Sprintf("there is no spec of the groups: %v", err))
		return nil
	}
	return c.Spec()
}
