package plan

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/tiers/hybrid"
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
