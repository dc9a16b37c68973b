// Package plan computes how many bytes an inference engine stores for a token, a block and a request of a model, and
// what tiers a workload needs for that. It reads the config.json of the model, in the format of Hugging Face.
//
//	Parse  reads a config.json into a Model: what each layer stores
//	Make   computes a Plan of a Model and Options
//	Plan   is JSON as it stands, and Write prints it for people
//
// All of it is arithmetic without I/O. A layer stores one of four things:
//
//	full, swa, chunk   keys and values of each token:
//	                   key/value heads x (key size + value size) x bytes of an element
//	mla                one latent row of each token for all heads:
//	                   (kv_lora_rank + qk_rope_head_dim) x bytes of an element
//	mamba              a state that does not grow: a convolution's last inputs, and
//	                   the recurrent part, of Mamba 1 and 2 and of gated delta nets
//
// Layers of kind swa attend to a window of earlier tokens, layers of kind chunk to the chunk of the token. Earlier
// tokens are stored like the rest, but not needed again.
//
// The package guesses nothing. The fields say what kinds of layers there are; a missing field and an impossible value
// are errors. The Plan lists each assumption, such as what the configs of a model type leave out.
package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Limits of the values in a config. They are far above all models, and keep products of a few of them within 63 bits.
const (
	maxLayers  = 1024
	maxHeads   = 1024
	maxDim     = 1 << 14 // of a head, of a latent row, and of a state
	maxHidden  = 1 << 20
	maxContext = 1 << 28 // tokens
	maxKernel  = 64
)

// Model is what the layers of a model store, as its config.json says.
type Model struct {
	Type       string // model_type of the language model
	Layers     int
	Heads      int     // query heads; 0: unknown. Tensor parallelism divides them.
	MaxContext int     // tokens; 0: unknown
	Dtype      string  // of the weights, by a name of dtypes; empty: unknown
	StateDtype string  // of recurrent states; empty: that of the weights
	QuantKV    bool    // the checkpoint asks for quantized keys and values
	Classes    []Class // in the order of their first layers
	Notes      []string
}

// Class is the layers with one shape.
type Class struct {
	Shape  Shape
	Layers []int // positions, ascending
}

// Shape is what one layer stores. Fields without meaning for its kind are zero.
type Shape struct {
	Kind    hybrid.Kind // Full, MLA, SlidingWindow, ChunkedLocal or Mamba
	KVHeads int
	HeadDim int // of a key, and of a value
	Latent  int // MLA: elements of a row
	Window  int // tokens
	Chunk   int // tokens
	State   State
}

// State is the state of a recurrent layer.
type State struct {
	Kind     string // "mamba1", "mamba2" or "gated delta net"
	Inner    int    // mamba1: channels
	Heads    int    // mamba2; value heads of a gated delta net
	HeadDim  int    // of these
	KeyHeads int    // gated delta net
	KeyDim   int    // of these
	Groups   int    // mamba2
	Size     int    // elements of the state of a channel: mamba1, mamba2
	Kernel   int    // of the convolution
}

// grows reports whether each token adds to the stored bytes.
func (s Shape) grows() bool { return s.Kind != hybrid.Mamba }

// reach returns how many tokens of a context the next token needs at most.
func (s Shape) reach(context int) int {
	switch s.Kind {
	case hybrid.SlidingWindow:
		return min(context, s.Window)
	case hybrid.ChunkedLocal:
		return min(context, s.Chunk)
	}
	return context
}

// reader reads the object of a config that describes the language model.
type reader struct {
	object
	model *Model
}

func (r *reader) need(name string, limit int) int {
	n := r.number(name, limit)
	if n == 0 {
		r.fail(name, "is missing, and model_type %s needs it", r.model.Type)
		return 1
	}
	return n
}

// or returns the number of a field. If the field is missing, it returns the value of the model type and notes that.
// Without such a value the field is required.
func (r *reader) or(name string, limit, otherwise int) int {
	if otherwise == 0 || r.value(name) != nil {
		return r.need(name, limit)
	}
	r.note("%s%s is not there: %d, as model_type %s has it then", r.at, name, otherwise, r.model.Type)
	return otherwise
}

func (r *reader) note(format string, args ...any) {
	r.model.Notes = append(r.model.Notes, fmt.Sprintf(format, args...))
}

func (r *reader) add(layer int, s Shape) {
	for i := range r.model.Classes {
		if c := &r.model.Classes[i]; c.Shape == s {
			c.Layers = append(c.Layers, layer)
			return
		}
	}
	r.model.Classes = append(r.model.Classes, Class{Shape: s, Layers: []int{layer}})
}

// Parse reads a config.json. Its error lists all faults.
func Parse(text []byte) (*Model, error) {
	var errs []error
	outer, err := parseObject(text, &errs)
	if err != nil {
		return nil, err
	}
	m := &Model{}
	inner, nested := outer.object("text_config")
	if nested {
		m.Notes = append(m.Notes, "only text_config is read: what images and sound add are tokens like others")
	} else {
		inner = outer
	}
	r := &reader{object: inner, model: m}
	m.Type = inner.text("model_type")
	if len(errs) == 0 {
		r.crossAttention(outer)
		r.read(outer)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return m, nil
}

// read reads the fields of all models, and then the layers.
func (r *reader) read(outer object) {
	if r.model.Type == "" {
		r.fail("model_type", "is missing: it says what the other fields mean")
		return
	}
	r.unsupported()
	if list := r.texts("layers_block_type"); r.value("num_hidden_layers") == nil && len(list) > 0 && len(list) <= maxLayers {
		r.model.Layers = len(list)
	} else {
		r.model.Layers = r.need("num_hidden_layers", maxLayers)
	}
	r.model.MaxContext = r.number("max_position_embeddings", maxContext)
	r.dtypes(outer)
	if len(*r.errs) == 0 {
		r.layers()
	}
	if n := r.count("num_nextn_predict_layers"); n > 0 {
		r.note("%d draft layers (num_nextn_predict_layers) are not counted: an engine that uses them keeps more", n)
	}
}

// places returns the objects that may hold a field that is not about layers.
func (r *reader) places(outer object) []object {
	if r.at == "" {
		return []object{r.object}
	}
	return []object{r.object, outer}
}

// crossAttention refuses models whose decoder attends to the output of an encoder.
func (r *reader) crossAttention(outer object) {
	for _, o := range r.places(outer) {
		for _, name := range []string{"is_encoder_decoder", "add_cross_attention"} {
			if o.flag(name) {
				o.fail(name, "cross attention is not supported")
				return
			}
		}
		if text := string(o.value("cross_attention_layers")); text != "" && text != "[]" {
			o.fail("cross_attention_layers", "cross attention is not supported")
			return
		}
	}
}

// unsupported refuses fields that make layers store something else than their kind says.
func (r *reader) unsupported() {
	if r.count("num_kv_shared_layers") > 0 {
		r.fail("num_kv_shared_layers", "layers that share keys and values are not supported")
	}
	for _, name := range []string{"index_head_dim", "index_n_heads"} {
		if r.value(name) != nil {
			r.fail(name, "the index of sparse attention is not supported: engines differ in how they keep it")
		}
	}
	if r.value("linear_attn_config") != nil {
		r.fail("linear_attn_config", "this kind of linear attention is not supported")
	}
}

func (r *reader) dtypes(outer object) {
	for _, o := range r.places(outer) {
		for _, name := range []string{"dtype", "torch_dtype"} {
			if s := o.text(name); s != "" && r.model.Dtype == "" {
				r.model.Dtype = r.weights(o, name, s)
			}
		}
		if q, ok := o.object("quantization_config"); ok {
			r.model.QuantKV = r.model.QuantKV || q.value("kv_cache_scheme") != nil || q.value("kv_cache_quant_algo") != nil
		}
	}
	for _, name := range []string{"mamba_ssm_cache_dtype", "mamba_ssm_dtype"} {
		if s := r.text(name); s != "" && s != "auto" && r.model.StateDtype == "" {
			r.model.StateDtype = r.weights(r.object, name, s)
		}
	}
}

func (r *reader) weights(o object, name, s string) string {
	switch strings.TrimPrefix(s, "torch.") {
	case "bfloat16":
		return "bf16"
	case "float16", "half":
		return "fp16"
	case "float32", "float":
		return "fp32"
	}
	o.fail(name, "got %q, want bfloat16, float16 or float32", s)
	return ""
}

// The kinds of layers, as layer_types names them.
const (
	typeFull    = "full_attention"
	typeSliding = "sliding_attention"
	typeChunked = "chunked_attention"
	typeLinear  = "linear_attention"
)

// family is what the configs of a model type may leave out, and what the type has then.
type family struct {
	allHeads bool // without num_key_value_heads every query head has its own
	divide   bool // without head_dim it is hidden_size / num_attention_heads
	windows  int  // without layer_types and a pattern every layer has a window, except each so-manieth; everyLayer: none is excepted

	heads, kvHeads, headDim int // 0: the field is required
}

const everyLayer = -1

// families are the model types that kvfs was compared with. All others are read by their fields alone.
var families = map[string]family{
	"llama": {allHeads: true, divide: true}, "phi3": {allHeads: true, divide: true, windows: everyLayer},
	"mistral": {divide: true, windows: everyLayer}, "mixtral": {divide: true, windows: everyLayer},
	"gemma2": {windows: 2}, "gemma3_text": {heads: 8, kvHeads: 4, headDim: 256, windows: 6}, "gpt_oss": {windows: 2},
	"qwen2": {divide: true}, "qwen2_moe": {divide: true}, "jamba": {divide: true}, "falcon_h1": {divide: true},
	"qwen3": {}, "qwen3_moe": {}, "qwen3_vl_text": {}, "qwen3_vl_moe_text": {}, "llama4_text": {}, "deepseek_v2": {}, "deepseek_v3": {},
	"kimi_k2": {}, "nemotron_h": {}, "qwen3_next": {}, "qwen3_5_text": {}, "qwen3_5_moe_text": {},
}

// layers reads all layers: which kinds there are is told by the fields that only one kind has.
func (r *reader) layers() {
	if _, compared := families[r.model.Type]; !compared {
		r.note("model_type %s is read by its fields alone, since kvfs was not compared with it: compare the bytes of a block with a file of the engine", r.model.Type)
	}
	has := func(name string) bool { return r.value(name) != nil }
	switch {
	case has("kv_lora_rank"), has("qk_rope_head_dim"):
		readLatent(r)
	case has("attn_layer_period"):
		readJamba(r)
	case has("mamba_num_heads"):
		readNemotron(r)
	case has("mamba_n_heads"):
		readFalcon(r)
	case has("linear_key_head_dim"):
		readDeltaNet(r)
	default:
		readAttention(r)
	}
}

func readAttention(r *reader) {
	full := r.attention("head_dim")
	shapes := map[string]Shape{} // by kind: each is read once, so that an error is reported once
	for i, kind := range r.layerKinds(attentionKinds, typeFull, typeSliding, typeChunked) {
		if _, there := shapes[kind]; !there {
			shapes[kind] = r.looking(full, kind)
		}
		r.add(i, shapes[kind])
	}
}

// attention reads the shape of a layer of full attention. headDim is the field with the size of a head.
func (r *reader) attention(headDim string) Shape {
	f := families[r.model.Type]
	heads := r.or("num_attention_heads", maxHeads, f.heads)
	r.model.Heads = heads
	if f.allHeads {
		f.kvHeads = heads
	}
	s := Shape{Kind: hybrid.Full, KVHeads: r.or("num_key_value_heads", maxHeads, f.kvHeads)}
	if heads%s.KVHeads != 0 {
		r.fail("num_key_value_heads", "%d does not divide num_attention_heads (%d)", s.KVHeads, heads)
	}
	if f.divide && r.value(headDim) == nil {
		s.HeadDim = r.divided(r.need("hidden_size", maxHidden), heads)
	} else {
		s.HeadDim = r.or(headDim, maxDim, f.headDim)
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

// attentionKinds returns the kinds of the layers of attention in a config without layer_types.
func attentionKinds(r *reader, layers int) []string {
	every := func(n int) []string {
		return chosen(layers, typeSliding, func(i int) bool { return n == everyLayer || n > 0 && (i+1)%n != 0 })
	}
	f := families[r.model.Type]
	for _, name := range []string{"sliding_window_pattern", "_sliding_window_pattern"} {
		if r.value(name) != nil {
			return every(r.need(name, maxLayers))
		}
	}
	switch {
	case r.value("attention_chunk_size") != nil:
		return unlessNoRope(r, layers)
	case r.value("use_sliding_window") != nil:
		return upperWindows(r, layers)
	case f.windows > 0:
		r.note("neither layer_types nor sliding_window_pattern is given: every layer but each %s has a window, as model_type %s has it then",
			ordinal(f.windows), r.model.Type)
		return every(f.windows)
	case r.value("sliding_window") == nil:
		return every(0)
	case f.windows == 0:
		r.fail("sliding_window", "is given, and neither layer_types nor sliding_window_pattern, which say which layers have it")
	}
	return every(everyLayer)
}

// upperWindows gives the layers from max_window_layers on a window, with use_sliding_window.
func upperWindows(r *reader, layers int) []string {
	first := layers
	if r.flag("use_sliding_window") && r.value("sliding_window") != nil {
		if r.value("max_window_layers") == nil {
			r.fail("max_window_layers", "is missing, and use_sliding_window needs it")
		}
		first = r.count("max_window_layers")
	}
	return chosen(layers, typeSliding, func(i int) bool { return i >= first })
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

// recurrent returns the shape of a layer that stores a state.
func recurrent(s State) Shape { return Shape{Kind: hybrid.Mamba, State: s} }

// readJamba reads Mamba 1 layers; one in attn_layer_period layers is attention.
func readJamba(r *reader) {
	full := r.attention("head_dim")
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
	full := r.attention(name)
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
	full := r.attention("head_dim")
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
	for _, name := range []string{"attn_layer_indices", "layer_types", "layers_block_type"} {
		if r.value(name) != nil {
			r.fail(name, "attention in some of the layers is not supported")
		}
	}
	for i := range r.model.Layers {
		r.add(i, full)
		r.add(i, recurrent(state))
	}
}

// readDeltaNet reads gated delta nets; one in full_attention_interval layers is attention.
func readDeltaNet(r *reader) {
	full := r.attention("head_dim")
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

// object is a JSON object of a model config. It collects the errors of its fields in errs, so that all of them are
// reported at once.
type object struct {
	at     string // "" or "text_config."
	fields map[string]json.RawMessage
	errs   *[]error
}

// parseObject reads a config that Python wrote, in which numbers may be Infinity or NaN.
func parseObject(text []byte, errs *[]error) (object, error) {
	o := object{errs: errs}
	err := json.Unmarshal(plainNumbers(text), &o.fields)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return o, fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	if err != nil || o.fields == nil {
		return o, errors.New("not a JSON object")
	}
	return o, nil
}

// plainNumbers returns text with null in place of the numbers that Python writes and JSON does not have, padded to
// the same length.
func plainNumbers(text []byte) []byte {
	out := bytes.Clone(text)
	inString := false
	for i := 0; i < len(out); i++ {
		switch {
		case inString && out[i] == '\\':
			i++
		case out[i] == '"':
			inString = !inString
		case !inString:
			for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
				if !bytes.HasPrefix(out[i:], []byte(word)) {
					continue
				}
				null := "null"
				if len(word) < len(null) {
					null = "0" // NaN: any number will do, because no code reads it
				}
				copy(out[i:], null+string(bytes.Repeat([]byte(" "), len(word)-len(null))))
				i += len(word) - 1
				break
			}
		}
	}
	return out
}

// fail collects an error about a field.
func (o object) fail(name, format string, args ...any) {
	*o.errs = append(*o.errs, fmt.Errorf("%s%s: %s", o.at, name, fmt.Sprintf(format, args...)))
}

// value returns the text of a field, nil if it is absent or null.
func (o object) value(name string) json.RawMessage {
	text := o.fields[name]
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	return text
}

// wrong adds the error that a field does not have the wanted type.
func (o object) wrong(name, want string) {
	text := string(o.value(name))
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	o.fail(name, "got %s, want %s", text, want)
}

// number returns a whole number in 1..limit, 0 if the field is absent. For any other value it adds an error and
// returns 1, so that no second error follows from it.
func (o object) number(name string, limit int) int {
	text := o.value(name)
	if text == nil {
		return 0
	}
	if n, ok := wholeNumber(text); ok && n >= 1 && n <= int64(limit) {
		return int(n)
	}
	o.wrong(name, fmt.Sprintf("a whole number from 1 to %d", limit))
	return 1
}

// count is number for counts of layers, which may be zero.
func (o object) count(name string) int {
	if n, ok := wholeNumber(o.value(name)); ok && n == 0 {
		return 0
	}
	return o.number(name, maxLayers)
}

// wholeNumber reads 16 and 16.0, but not "16".
func wholeNumber(text json.RawMessage) (int64, bool) {
	if len(text) == 0 || text[0] == '"' {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(text), 64)
	n := int64(f)
	return n, err == nil && f > -1e15 && f < 1e15 && float64(n) == f
}

// flag returns a boolean, false if the field is absent.
func (o object) flag(name string) bool {
	text := o.value(name)
	var is bool
	if text != nil && json.Unmarshal(text, &is) != nil {
		o.wrong(name, "true or false")
	}
	return is
}

// text returns a string, empty if the field is absent.
func (o object) text(name string) string {
	value := o.value(name)
	var s string
	if value != nil && json.Unmarshal(value, &s) != nil {
		o.wrong(name, "a string")
	}
	return s
}

// texts returns a list of strings, nil if the field is absent.
func (o object) texts(name string) []string {
	value := o.value(name)
	var list []string
	if value != nil && json.Unmarshal(value, &list) != nil {
		o.wrong(name, "a list of strings")
	}
	return list
}

// bits returns a list of zeros and ones, nil if the field is absent.
func (o object) bits(name string) []int {
	value := o.value(name)
	var list []int
	if value != nil && json.Unmarshal(value, &list) != nil ||
		slices.ContainsFunc(list, func(n int) bool { return n != 0 && n != 1 }) {
		o.wrong(name, "a list of zeros and ones")
		return nil
	}
	return list
}

// object returns an object within o, and whether the field is there.
func (o object) object(name string) (object, bool) {
	value := o.value(name)
	if value == nil {
		return object{}, false
	}
	inner := object{at: o.at + name + ".", errs: o.errs}
	if json.Unmarshal(value, &inner.fields) != nil {
		o.wrong(name, "an object")
		return object{}, false
	}
	return inner, true
}

type dtype struct {
	name  string
	per32 int64 // bytes of 32 elements
	scale int64 // bytes beside the elements of each head and token, of keys and of values
	block bool  // rows must be whole blocks of 32 elements
}

// dtypes are the types by the names that vLLM, SGLang and llama.cpp give them.
var dtypes = map[string]dtype{
	"fp32":               {per32: 128},
	"bf16":               {per32: 64},
	"fp16":               {per32: 64},
	"fp8":                {per32: 32},
	"fp8_e4m3":           {per32: 32},
	"fp8_e5m2":           {per32: 32},
	"int8":               {per32: 32},
	"fp8_per_token_head": {per32: 32, scale: 4},
	"int8_per_token_head": {
		per32: 32, scale: 4, // a number of four bytes
	},
	"q8_0": {per32: 34, block: true},
	"q4_0": {per32: 18, block: true},
}

// dtypeAliases are further names.
var dtypeAliases = map[string]string{
	"float32": "fp32", "f32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16",
}

func findDtype(name string) (dtype, error) {
	short := strings.ToLower(name)
	if full := dtypeAliases[short]; full != "" {
		short = full
	}
	d, ok := dtypes[short]
	if !ok {
		return dtype{}, fmt.Errorf("%q is not known; one of auto, %s", name, strings.Join(slices.Sorted(maps.Keys(dtypes)), ", "))
	}
	d.name = short
	return d, nil
}

func (d dtype) bytes(elements int64) int64 { return (elements*d.per32 + 31) / 32 }

func kvDtype(m *Model, o *Options, notes *[]string) (dtype, error) {
	name := o.KVDtype
	if name == "" || name == "auto" {
		switch {
		case o.Engine == LlamaCpp:
			name = "fp16"
			*notes = append(*notes, "keys and values are fp16, the default of llama.cpp; --cache-type-k and --cache-type-v change it")
		case m.QuantKV:
			return dtype{}, errors.New("auto is not enough: quantization_config has a quantized KV cache, and each engine stores it in its own way; name the type")
		case m.Dtype == "":
			return dtype{}, errors.New("auto is not enough: the config has neither dtype nor torch_dtype; name the type")
		default:
			name = m.Dtype
		}
	}
	return findDtype(name)
}

// stateDtypes returns the types of the two parts of a recurrent state.
func stateDtypes(m *Model, o *Options, notes *[]string) (conv, ssm dtype, err error) {
	name, weights := o.StateDtype, m.Dtype
	if o.Engine == LlamaCpp {
		weights = "fp32"
		*notes = append(*notes, "recurrent states are fp32, as llama.cpp has them")
	}
	if weights == "" {
		return conv, ssm, errors.New("the config has neither dtype nor torch_dtype, the type of the states of convolutions")
	}
	if name == "" || name == "auto" {
		name = weights
		if m.StateDtype != "" && o.Engine != LlamaCpp {
			name = m.StateDtype
			*notes = append(*notes, "recurrent states are "+name+", as the config has it")
		} else if o.Engine != LlamaCpp {
			*notes = append(*notes, "recurrent states are "+name+", like the weights; --state-dtype changes it")
		}
	}
	if conv, err = findDtype(weights); err == nil {
		ssm, err = findDtype(name)
	}
	if err == nil && (ssm.block || ssm.scale > 0) {
		err = fmt.Errorf("%q is not a type of states", name)
	}
	return conv, ssm, err
}
