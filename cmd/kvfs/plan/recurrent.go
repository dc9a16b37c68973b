package plan

import (
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// recurrent returns the shape of a layer that stores a state.
func recurrent(s State) Shape { return Shape{Kind: hybrid.Mamba, State: s} }

// readJamba reads Mamba 1 layers; one in attn_layer_period layers is attention.
func readJamba(r *reader) {
	full := attention{divide: true}.shape(r)
	hidden, expand := r.need("hidden_size", maxHidden), r.need("mamba_expand", maxKernel)
	state := recurrent(State{
		Kind: "mamba1", Inner: hidden * expand,
		Size: r.need("mamba_d_state", maxDim), Kernel: r.need("mamba_d_conv", maxKernel),
	})
	period := r.need("attn_layer_period", maxLayers)
	if r.value("attn_layer_offset") == nil {
		r.fail("attn_layer_offset", "is missing, and model_type %s needs it", r.model.Type)
	}
	offset := r.count("attn_layer_offset")
	if offset >= period {
		r.fail("attn_layer_offset", "%d is not less than attn_layer_period (%d)", offset, period)
	}
	for i := range r.model.Layers {
		if i%period == offset {
			r.add(i, full)
		} else {
			r.add(i, state)
		}
	}
}

// readNemotron reads Mamba 2, attention and feed-forward layers in the order of a pattern.
func readNemotron(r *reader) {
	name := "head_dim"
	if r.value(name) == nil {
		name = "attention_head_dim" // of the first models
	}
	full := attention{headName: name}.shape(r)
	state := recurrent(State{
		Kind: "mamba2", Heads: r.need("mamba_num_heads", maxHeads), HeadDim: r.need("mamba_head_dim", maxDim),
		Groups: r.need("n_groups", maxHeads), Size: r.need("ssm_state_size", maxDim), Kernel: r.need("conv_kernel", maxKernel),
	})
	for i, kind := range r.nemotronLayers() {
		switch kind {
		case "M", "mamba":
			r.add(i, state)
		case "*", "attention":
			r.add(i, full)
		case "-", "E", "mlp", "moe": // these layers store nothing
		default:
			r.fail("hybrid_override_pattern", "layer %d is %q; known are M, *, - and E", i, kind)
			return
		}
	}
}

// nemotronLayers returns the kinds of the layers, in one of two forms.
func (r *reader) nemotronLayers() []string {
	kinds, name := r.texts("layers_block_type"), "layers_block_type"
	if kinds == nil {
		name = "hybrid_override_pattern"
		for _, c := range r.text(name) {
			kinds = append(kinds, string(c))
		}
	}
	switch {
	case len(kinds) == 0:
		r.fail(name, "is missing, and model_type %s needs it", r.model.Type)
	case len(kinds) != r.model.Layers:
		r.fail(name, "has %d layers, num_hidden_layers is %d", len(kinds), r.model.Layers)
		return nil
	}
	return kinds
}

// readFalcon reads layers that have both attention and Mamba 2.
func readFalcon(r *reader) {
	full := attention{divide: true}.shape(r)
	heads := r.need("mamba_n_heads", maxHeads)
	inner := r.number("mamba_d_ssm", maxHidden)
	if inner == 0 {
		inner = r.need("mamba_expand", maxKernel) * r.need("hidden_size", maxHidden)
	}
	if inner%heads != 0 || inner/heads > maxDim {
		r.fail("mamba_n_heads", "%d does not divide the channels of the state (%d), or leaves too large heads", heads, inner)
		return
	}
	state := State{
		Kind: "mamba2", Heads: heads, HeadDim: inner / heads, Groups: r.need("mamba_n_groups", maxHeads),
		Size: r.need("mamba_d_state", maxDim), Kernel: r.need("mamba_d_conv", maxKernel),
	}
	if text := string(r.value("mamba_d_head")); text != "" && text != `"auto"` && r.number("mamba_d_head", maxDim) != state.HeadDim {
		r.fail("mamba_d_head", "%s is not the channels of the state (%d) / mamba_n_heads (%d)", text, inner, heads)
	}
	if r.value("attn_layer_indices") != nil {
		r.fail("attn_layer_indices", "attention in some of the layers is not supported")
	}
	for i := range r.model.Layers {
		r.add(i, full)
		r.add(i, recurrent(state))
	}
}

// readDeltaNet reads gated delta nets; one in full_attention_interval layers is attention.
func readDeltaNet(r *reader) {
	full := attention{}.shape(r)
	state := recurrent(State{
		Kind: "gated delta net", KeyHeads: r.need("linear_num_key_heads", maxHeads), KeyDim: r.need("linear_key_head_dim", maxDim),
		Heads: r.need("linear_num_value_heads", maxHeads), HeadDim: r.need("linear_value_head_dim", maxDim),
		Kernel: r.need("linear_conv_kernel_dim", maxKernel),
	})
	byInterval := func(r *reader, layers int) []string {
		n := r.need("full_attention_interval", maxLayers)
		return chosen(layers, typeLinear, func(i int) bool { return (i+1)%n != 0 })
	}
	for i, kind := range r.layerKinds(byInterval, typeFull, typeLinear) {
		if kind == typeFull {
			r.add(i, full)
		} else {
			r.add(i, state)
		}
	}
}
