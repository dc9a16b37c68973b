package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestParseErrors changes good configs and shows what is said of the field.
func TestParseErrors(t *testing.T) {
	for _, tc := range []struct {
		model  string
		fields map[string]any
		want   []string
	}{
		{"llama-3.1-8b", map[string]any{"model_type": nil}, []string{"model_type: is missing"}},
		{"llama-3.1-8b", map[string]any{"model_type": "new"}, []string{"head_dim: is missing, and model_type new needs it"}},
		{"llama-3.1-8b", map[string]any{"model_type": "new", "head_dim": 128, "sliding_window": 4096}, []string{"sliding_window: is given, and neither layer_types nor"}},
		{"deepseek-v3", map[string]any{"model_type": "new", "linear_attn_config": map[string]any{}}, []string{"linear_attn_config: this kind of linear attention is not supported"}},
		{"falcon-h1-7b", map[string]any{"model_type": "new", "head_dim": 128, "layer_types": []string{"mamba"}}, []string{"layer_types: attention in some of the layers is not supported"}},
		{"llama-3.1-8b", map[string]any{"model_type": 3}, []string{"model_type: got 3, want a string"}},
		{"llama-3.1-8b", map[string]any{"num_hidden_layers": nil}, []string{"num_hidden_layers: is missing, and model_type llama needs it"}},
		{"llama-3.1-8b", map[string]any{"num_hidden_layers": "32"}, []string{`num_hidden_layers: got "32", want a whole number from 1 to 1024`}},
		{"llama-3.1-8b", map[string]any{"num_hidden_layers": 1e9}, []string{"num_hidden_layers: got 1000000000, want a whole number from 1 to 1024"}},
		{"llama-3.1-8b", map[string]any{"num_attention_heads": 0, "num_key_value_heads": -8}, []string{"num_attention_heads: got 0", "num_key_value_heads: got -8"}},
		{"llama-3.1-8b", map[string]any{"head_dim": 12.5}, []string{"head_dim: got 12.5, want a whole number"}},
		{"llama-3.1-8b", map[string]any{"head_dim": []int{128}}, []string{"head_dim: got [128], want a whole number"}},
		{"llama-3.1-8b", map[string]any{"num_key_value_heads": 7}, []string{"num_key_value_heads: 7 does not divide num_attention_heads (32)"}},
		{"llama-3.1-8b", map[string]any{"hidden_size": nil}, []string{"hidden_size: is missing"}},
		{"llama-3.1-8b", map[string]any{"hidden_size": 4097}, []string{"head_dim: is missing, and hidden_size (4097) / num_attention_heads (32) is no size"}},
		{"llama-3.1-8b", map[string]any{"torch_dtype": "int4"}, []string{`torch_dtype: got "int4", want bfloat16, float16 or float32`}},
		{"llama-3.1-8b", map[string]any{"layer_types": []string{"full_attention"}}, []string{"layer_types: has 1 layers, num_hidden_layers is 32"}},
		{"llama-3.1-8b", map[string]any{"is_encoder_decoder": true}, []string{"is_encoder_decoder: cross attention is not supported"}},
		{"llama-3.1-8b", map[string]any{"cross_attention_layers": []int{3, 8}}, []string{"cross_attention_layers: cross attention is not supported"}},
		{"llama-3.1-8b", map[string]any{"num_kv_shared_layers": 10}, []string{"num_kv_shared_layers: layers that share keys and values are not supported"}},
		{"qwen3-8b", map[string]any{"head_dim": nil}, []string{"head_dim: is missing, and model_type qwen3 needs it"}},
		{"qwen3-8b", map[string]any{"num_key_value_heads": nil}, []string{"num_key_value_heads: is missing"}},
		{"qwen3-8b", map[string]any{"use_sliding_window": "false"}, []string{`use_sliding_window: got "false", want true or false`}},
		{"qwen2.5-72b", map[string]any{"use_sliding_window": true, "max_window_layers": nil}, []string{"max_window_layers: is missing"}},
		{"gemma-2-9b", map[string]any{"sliding_window": nil}, []string{"sliding_window: is missing, and model_type gemma2 needs it"}},
		{"gemma-3-27b", map[string]any{"sliding_window": 0}, []string{"text_config.sliding_window: got 0"}},
		{"gemma-3-27b", map[string]any{"sliding_window_pattern": "6"}, []string{"text_config.sliding_window_pattern: got \"6\""}},
		{"gpt-oss-20b", map[string]any{"layer_types": []string{"sliding_attention", "odd"}, "num_hidden_layers": 2}, []string{`layer_types: layer 1 is "odd"; known are full_attention`}},
		{"gpt-oss-20b", map[string]any{"layer_types": "full_attention"}, []string{"layer_types: got \"full_attention\", want a list of strings"}},
		{"llama-4-scout", map[string]any{"no_rope_layers": []int{1, 1, 0}}, []string{"text_config.no_rope_layers: has 3 layers, num_hidden_layers is 48"}},
		{"llama-4-scout", map[string]any{"no_rope_layers": []int{2}}, []string{"text_config.no_rope_layers: got [2], want a list of zeros and ones"}},
		{"deepseek-v3", map[string]any{"kv_lora_rank": nil, "qk_rope_head_dim": 1 << 20}, []string{"kv_lora_rank: is missing", "qk_rope_head_dim: got 1048576"}},
		{"deepseek-v3", map[string]any{"index_head_dim": 128}, []string{"index_head_dim: the index of sparse attention is not supported"}},
		{"jamba-1.5-mini", map[string]any{"attn_layer_offset": 8, "mamba_d_state": nil}, []string{"attn_layer_offset: 8 is not less than attn_layer_period (8)", "mamba_d_state: is missing"}},
		{"nemotron-h-56b", map[string]any{"hybrid_override_pattern": "M-*"}, []string{"hybrid_override_pattern: has 3 layers, num_hidden_layers is 118"}},
		{"nemotron-h-56b", map[string]any{"hybrid_override_pattern": "M-X", "num_hidden_layers": 3}, []string{`hybrid_override_pattern: layer 2 is "X"; known are M, *, - and E`}},
		{"nemotron-h-56b", map[string]any{"hybrid_override_pattern": nil, "attention_head_dim": nil}, []string{"hybrid_override_pattern: is missing", "head_dim: is missing"}},
		{"falcon-h1-7b", map[string]any{"mamba_n_heads": 23}, []string{"mamba_n_heads: 23 does not divide the channels of the state (3072)"}},
		{"falcon-h1-7b", map[string]any{"mamba_d_head": 64}, []string{"mamba_d_head: 64 is not the channels of the state (3072) / mamba_n_heads (24)"}},
		{"falcon-h1-7b", map[string]any{"attn_layer_indices": []int{1}}, []string{"attn_layer_indices: attention in some of the layers is not supported"}},
		{"qwen3-next-80b", map[string]any{"full_attention_interval": nil}, []string{"full_attention_interval: is missing"}},
		{"qwen3-next-80b", map[string]any{"linear_num_value_heads": []int{}}, []string{"linear_num_value_heads: got []"}},
	} {
		m, err := Parse(changed(t, tc.model, tc.fields))
		if err == nil {
			t.Errorf("%s with %v: got %+v, want an error", tc.model, tc.fields, m)
			continue
		}
		for _, part := range tc.want {
			if strings.Count(err.Error(), part) != 1 {
				t.Errorf("%s with %v: %q, want %q once", tc.model, tc.fields, err, part)
			}
		}
	}
	for text, want := range map[string]string{
		"": "byte 0", "{": "byte 1", "[]": "not a JSON object", "null": "not a JSON object",
		`{"text_config": 1}`:              "text_config: got 1, want an object",
		`{"text_config": {"x": 1}}`:       "text_config.model_type: is missing",
		`{"model_type": "t5", "x": NaN}`:  "num_hidden_layers: is missing",
		`{"is_encoder_decoder": true}`:    "cross attention is not supported",
		`{"model_type": "llama", "x": -}`: "byte 31",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// TestParseForms shows forms of configs that mean the same, or change which layers look
// how far back.
func TestParseForms(t *testing.T) {
	for _, tc := range []struct {
		model  string
		fields map[string]any
		token  int64
		beyond int64
		note   string
	}{
		{"llama-3.1-8b", map[string]any{"num_hidden_layers": 32.0, "head_dim": 128, "torch_dtype": "torch.float16"}, 131072, 131072, ""},
		{"llama-3.1-8b", map[string]any{"num_key_value_heads": nil}, 4 * 131072, 4 * 131072, "num_key_value_heads is not there: 32"},
		{"llama-3.1-8b", map[string]any{"num_key_value_heads": 1}, 131072 / 8, 131072 / 8, ""},
		{"llama-3.1-8b", map[string]any{"cross_attention_layers": []int{}, "num_nextn_predict_layers": 2}, 131072, 131072, "2 draft layers"},
		{"llama-3.1-8b", map[string]any{"model_type": "new", "head_dim": 128}, 131072, 131072, "model_type new is read by its fields alone"},
		{"gpt-oss-20b", map[string]any{"model_type": "new", "dtype": "bfloat16"}, 49152, 24576, "model_type new is read by its fields alone"},
		{"qwen2.5-72b", map[string]any{"use_sliding_window": true, "max_window_layers": 60}, 327680, 60 * 4096, ""},
		{"qwen3-8b", map[string]any{"use_sliding_window": true, "max_window_layers": 0}, 147456, 147456, ""},
		{"gemma-3-27b", map[string]any{"sliding_window_pattern": 2}, 507904, 31 * 8192, ""},
		{"gemma-3-27b", map[string]any{"_sliding_window_pattern": 31}, 507904, 2 * 8192, ""},
		{"gemma-3-27b", nil, 507904, 10 * 8192, "every layer but each 6th has a window"},
		{"gemma-3-27b", map[string]any{"head_dim": nil, "num_key_value_heads": nil}, 62 * 2 * 4 * 256 * 2, 10 * 2 * 4 * 256 * 2, "text_config.head_dim is not there: 256"},
		{"gpt-oss-20b", map[string]any{"layer_types": nil, "dtype": "bfloat16"}, 49152, 24576, "every layer but each second"},
		{"llama-4-scout", map[string]any{"no_rope_layer_interval": 2}, 196608, 24 * 4096, ""},
		{"llama-4-scout", map[string]any{"no_rope_layers": []int{}}, 196608, 49152, ""},
		{"llama-4-scout", map[string]any{"attention_chunk_size": nil}, 196608, 196608, ""},
		{"nemotron-3-nano-30b", map[string]any{"hybrid_override_pattern": nil, "num_hidden_layers": nil, "layers_block_type": []string{"mamba", "moe", "attention", "mlp"}}, 1024, 1024, ""},
		{"falcon-h1-7b", map[string]any{"mamba_d_ssm": nil, "mamba_d_head": "auto", "mamba_expand": 1}, 45056, 45056, ""},
	} {
		p, err := tryMake(t, changed(t, tc.model, tc.fields), Options{Context: 1000})
		if err != nil {
			t.Errorf("%s with %v: %v", tc.model, tc.fields, err)
			continue
		}
		if p.Token.Whole != tc.token || p.BeyondToken.Whole != tc.beyond || !hasNote(p, tc.note) {
			t.Errorf("%s with %v: got %d and %d bytes, %q; want %d, %d, %q", tc.model, tc.fields, p.Token.Whole, p.BeyondToken.Whole, p.Notes, tc.token, tc.beyond, tc.note)
		}
	}
	quant := changed(t, "llama-3.1-8b", map[string]any{"quantization_config": map[string]any{"kv_cache_scheme": map[string]any{"num_bits": 8}}})
	if _, err := tryMake(t, quant, Options{}); err == nil || !strings.Contains(err.Error(), "quantization_config has a quantized KV cache") {
		t.Errorf("a quantized KV cache: %v", err)
	}
}

// TestPlainNumbers shows that what Python writes as numbers becomes JSON of the same length,
// and that strings stay.
func TestPlainNumbers(t *testing.T) {
	in := `{"a": [NaN, -Infinity, Infinity], "NaN": "\"Infinity", "b": NaN}`
	want := `{"a": [0  , null     , null    ], "NaN": "\"Infinity", "b": 0  }`
	if got := string(plainNumbers([]byte(in))); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// FuzzParse shows that no config makes Parse or Make panic, or figures negative.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no testdata: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, uint8(1), uint8(1))
		f.Add(text, uint8(8), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, tp, pp uint8) {
		m, err := Parse(text)
		if err != nil {
			return
		}
		for engine := range blockTokens {
			p, err := Make(m, Options{TP: int(tp), PP: int(pp), Engine: engine, KVDtype: "fp8", Load: Load{Rate: 3, MeanPrompt: 1000, PrefixShare: 0.5, ReuseWindow: 1e12}})
			if err != nil {
				continue
			}
			if p.Token.Whole < p.Token.Rank || p.Request.Whole < p.Request.Rank || p.Token.Rank < 0 || p.Request.Rank < 0 {
				t.Errorf("%s: a rank keeps more than all: %+v", engine, p)
			}
			for _, g := range p.Groups {
				if g.FileBytes < 0 || g.Files < 1 {
					t.Errorf("%s: group %+v", engine, g)
				}
			}
		}
	})
}
