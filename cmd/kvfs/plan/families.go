package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// The kinds of layers, as layer_types names them.
const (
	typeFull    = "full_attention"
	typeSliding = "sliding_attention"
	typeChunked = "chunked_attention"
	typeLinear  = "linear_attention"
)

// families says, for each model_type, how to read its layers.
var families = map[string]func(*reader){
	"llama":             attention{allHeads: true, divide: true, layers: allFull}.read,
	"qwen2":             attention{divide: true, layers: upperWindows}.read,
	"qwen2_moe":         attention{divide: true, layers: upperWindows}.read,
	"qwen3":             attention{layers: upperWindows}.read,
	"qwen3_moe":         attention{layers: upperWindows}.read,
	"qwen3_vl_text":     attention{layers: allFull}.read,
	"qwen3_vl_moe_text": attention{layers: allFull}.read,
	"mistral":           attention{divide: true, layers: allWindows}.read,
	"mixtral":           attention{divide: true, layers: allWindows}.read,
	"phi3":              attention{allHeads: true, divide: true, layers: allWindows}.read,
	"gemma2":            attention{layers: interleaved(2)}.read,
	"gemma3_text":       attention{heads: 8, kvHeads: 4, headDim: 256, layers: interleaved(6)}.read,
	"gpt_oss":           attention{layers: interleaved(2)}.read,
	"llama4_text":       attention{layers: unlessNoRope}.read,
	"deepseek_v2":       readLatent,
	"deepseek_v3":       readLatent,
	"kimi_k2":           readLatent,
	"jamba":             readJamba,
	"nemotron_h":        readNemotron,
	"falcon_h1":         readFalcon,
	"qwen3_next":        readDeltaNet,
	"qwen3_5_text":      readDeltaNet,
	"qwen3_5_moe_text":  readDeltaNet,
}

// attention is a family whose layers keep keys and values.
type attention struct {
	allHeads bool   // without num_key_value_heads every query head has its own
	divide   bool   // without the size of a head it is hidden_size / num_attention_heads
	headName string // the field with the size of a head; empty: head_dim
	// Values of the model type if the field is missing. 0: the field is required.
	heads, kvHeads, headDim int

	layers func(r *reader, layers int) []string // kinds, for configs without layer_types
}

// read reads all layers.
func (a attention) read(r *reader) {
	full := a.shape(r)
	shapes := map[string]Shape{} // by kind: each is read once, so that an error is reported once
	for i, kind := range r.layerKinds(a.layers, typeFull, typeSliding, typeChunked) {
		if _, there := shapes[kind]; !there {
			shapes[kind] = r.looking(full, kind)
		}
		r.add(i, shapes[kind])
	}
}

// shape reads the shape of a layer of full attention.
func (a attention) shape(r *reader) Shape {
	heads := r.or("num_attention_heads", maxHeads, a.heads)
	r.model.Heads = heads
	if a.allHeads {
		a.kvHeads = heads
	}
	s := Shape{Kind: hybrid.Full, KVHeads: r.or("num_key_value_heads", maxHeads, a.kvHeads)}
	if heads%s.KVHeads != 0 {
		r.fail("num_key_value_heads", "%d does not divide num_attention_heads (%d)", s.KVHeads, heads)
	}
	name := cmp.Or(a.headName, "head_dim")
	if a.divide && r.value(name) == nil {
		s.HeadDim = r.divided(r.need("hidden_size", maxHidden), heads)
	} else {
		s.HeadDim = r.or(name, maxDim, a.headDim)
	}
	return s
}

// divided returns the size of a head, or 0 and an error if there is none.
func (r *reader) divided(hidden, heads int) int {
	if hidden%heads != 0 || hidden/heads > maxDim {
		r.fail("head_dim", "is missing, and hidden_size (%d) / num_attention_heads (%d) is no size from 1 to %d", hidden, heads, maxDim)
		return 0
	}
	return hidden / heads
}

// looking returns s with the window or chunk of this kind of layer.
func (r *reader) looking(s Shape, kind string) Shape {
	switch kind {
	case typeSliding:
		s.Kind, s.Window = hybrid.SlidingWindow, r.need("sliding_window", maxContext)
	case typeChunked:
		s.Kind, s.Chunk = hybrid.ChunkedLocal, r.need("attention_chunk_size", maxContext)
	}
	return s
}

// layerKinds returns the kind of each layer: from layer_types, or from the family without it.
func (r *reader) layerKinds(otherwise func(r *reader, layers int) []string, known ...string) []string {
	kinds := r.texts("layer_types")
	if kinds == nil {
		return otherwise(r, r.model.Layers)
	}
	if len(kinds) != r.model.Layers {
		r.fail("layer_types", "has %d layers, num_hidden_layers is %d", len(kinds), r.model.Layers)
		return nil
	}
	for i, kind := range kinds {
		if !slices.Contains(known, kind) {
			r.fail("layer_types", "layer %d is %q; known are %s", i, kind, strings.Join(known, ", "))
			return nil
		}
	}
	return kinds
}

// chosen returns the kinds of layers of which some are special and the others full.
func chosen(layers int, special string, is func(i int) bool) []string {
	kinds := make([]string, layers)
	for i := range kinds {
		kinds[i] = typeFull
		if is(i) {
			kinds[i] = special
		}
	}
	return kinds
}

func allFull(_ *reader, layers int) []string {
	return chosen(layers, typeFull, func(int) bool { return true })
}

// allWindows gives all layers the window of sliding_window, or none if there is none.
func allWindows(r *reader, layers int) []string {
	window := r.value("sliding_window") != nil
	return chosen(layers, typeSliding, func(int) bool { return window })
}

// upperWindows gives the layers from max_window_layers on a window, with use_sliding_window.
func upperWindows(r *reader, layers int) []string {
	if !r.flag("use_sliding_window") || r.value("sliding_window") == nil {
		return allFull(r, layers)
	}
	if r.value("max_window_layers") == nil {
		r.fail("max_window_layers", "is missing, and use_sliding_window needs it")
	}
	first := r.count("max_window_layers")
	return chosen(layers, typeSliding, func(i int) bool { return i >= first })
}

// interleaved gives every layer a window, except the last one of each group of layers.
func interleaved(period int) func(*reader, int) []string {
	return func(r *reader, layers int) []string {
		for _, name := range []string{"sliding_window_pattern", "_sliding_window_pattern"} {
			if r.value(name) != nil {
				n := r.need(name, maxLayers)
				return chosen(layers, typeSliding, func(i int) bool { return (i+1)%n != 0 })
			}
		}
		r.note("neither layer_types nor sliding_window_pattern is given: every layer but each %s has a window, as model_type %s has it then",
			ordinal(period), r.model.Type)
		return chosen(layers, typeSliding, func(i int) bool { return (i+1)%period != 0 })
	}
}

func ordinal(n int) string {
	if n == 2 {
		return "second"
	}
	return fmt.Sprintf("%dth", n)
}

// noRopeInterval is how often a layer of llama4 has no rotary embedding, by default.
const noRopeInterval = 4

// unlessNoRope makes layers with rotary embedding attend to their chunk.
func unlessNoRope(r *reader, layers int) []string {
	if r.value("attention_chunk_size") == nil {
		return allFull(r, layers)
	}
	if rope := r.bits("no_rope_layers"); len(rope) > 0 {
		if len(rope) != layers {
			r.fail("no_rope_layers", "has %d layers, num_hidden_layers is %d", len(rope), layers)
			return nil
		}
		return chosen(layers, typeChunked, func(i int) bool { return rope[i] == 1 })
	}
	n := r.or("no_rope_layer_interval", maxLayers, noRopeInterval)
	return chosen(layers, typeChunked, func(i int) bool { return (i+1)%n != 0 })
}

// readLatent reads a model of multi-head latent attention.
func readLatent(r *reader) {
	r.model.Heads = r.need("num_attention_heads", maxHeads)
	s := Shape{Kind: hybrid.MLA, Latent: r.need("kv_lora_rank", maxDim) + r.need("qk_rope_head_dim", maxDim)}
	for i := range r.model.Layers {
		r.add(i, s)
	}
}
