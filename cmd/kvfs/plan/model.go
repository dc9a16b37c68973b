package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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

// need returns the number of a field that is required.
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

// note adds an assumption.
func (r *reader) note(format string, args ...any) {
	r.model.Notes = append(r.model.Notes, fmt.Sprintf(format, args...))
}

// add adds a layer, or another part of one.
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

// read reads the fields of all models, and then the layers as the family of the model has them.
func (r *reader) read(outer object) {
	build, known := families[r.model.Type]
	switch {
	case r.model.Type == "":
		r.fail("model_type", "is missing: it says what the other fields mean")
		return
	case len(*r.errs) > 0:
		return
	case !known:
		r.fail("model_type", "%q is not known, and what its layers keep is not guessed; known are %s",
			r.model.Type, strings.Join(slices.Sorted(maps.Keys(families)), ", "))
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
		build(r)
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
}

// dtypes reads the types of the elements.
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

// weights returns the short name of a type of weights.
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
