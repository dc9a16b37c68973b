package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// dtype is a type of elements.
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

// findDtype returns the type of a name.
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

// bytes returns the bytes of n elements, rounded up.
func (d dtype) bytes(elements int64) int64 { return (elements*d.per32 + 31) / 32 }

// kvDtype returns the type of keys and values.
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
