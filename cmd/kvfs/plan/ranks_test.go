package plan

import (
	"strings"
	"testing"
)

// TestRanks shows what one rank keeps, and what all store together (D13).
func TestRanks(t *testing.T) {
	for _, tc := range []struct {
		model               string
		o                   Options
		rank, whole         int64 // of a token
		stateRank, stateAll int64
	}{
		{"llama-3.1-70b", Options{TP: 8}, 40960, 327680, 0, 0},
		{"llama-3.1-70b", Options{TP: 8, PP: 2}, 20480, 327680, 0, 0},
		// 64 ranks share 8 heads: each of them has one, of 8 copies
		{"llama-3.1-70b", Options{TP: 64}, 40960, 2621440, 0, 0},
		// 80 layers in 3 stages: 27, 27 and 26
		{"llama-3.1-70b", Options{PP: 3}, 27 * 4096, 327680, 0, 0},
		// a latent row is on all ranks
		{"deepseek-v3", Options{TP: 8}, 70272, 70272, 0, 0},
		{"deepseek-v3", Options{TP: 8, PP: 2}, 31 * 1152, 70272, 0, 0},
		// 8 groups of states over 2 ranks divide; over 16 each rank has a whole one
		{"nemotron-h-56b", Options{TP: 2}, 20480, 40960, 229810176, 459620352},
		{"nemotron-h-56b", Options{TP: 16}, 10 * 2 * 128 * 2, 81920, 54 * (3*(1024+2*256) + 1024*256) * 2, 16 * 54 * (3*(1024+2*256) + 1024*256) * 2},
		{"jamba-1.5-mini", Options{TP: 4}, 4096, 16384, 8716288 / 4, 8716288},
		{"qwen3-next-80b", Options{TP: 2}, 12288, 24576, 39518208 / 2, 39518208},
		// attention is at 5, 12, 19, 26, 33 and 42 of 52 layers; of 23 states one stage has 12
		{"nemotron-3-nano-30b", Options{PP: 2}, 3 * 1024, 6144, 12 * 2134016, 49082368},
	} {
		p := made(t, tc.model, tc.o)
		if p.Token.Rank != tc.rank || p.Token.Whole != tc.whole {
			t.Errorf("%s %+v: got %d of %d bytes a token, want %d of %d", tc.model, tc.o, p.Token.Rank, p.Token.Whole, tc.rank, tc.whole)
		}
		if p.State != nil && (p.State.Rank != tc.stateRank || p.State.Whole != tc.stateAll) {
			t.Errorf("%s %+v: got %d of %d bytes of state, want %d of %d", tc.model, tc.o, p.State.Rank, p.State.Whole, tc.stateRank, tc.stateAll)
		}
	}
	if p := made(t, "llama-3.1-70b", Options{TP: 64}); !hasNote(p, "each head is kept, and stored, 8 times") {
		t.Errorf("nothing is said of copies: %q", p.Notes)
	}
}

// TestVLLMStages shows that the files of vLLM hold all stages, each as large as the largest.
func TestVLLMStages(t *testing.T) {
	p := made(t, "llama-3.1-70b", Options{Engine: VLLM, PP: 3})
	if want := int64(3 * 27 * 4096 * 16); p.Groups[0].FileBytes != want || !hasNote(p, "each stage") {
		t.Errorf("got %+v, want %d bytes", p.Groups, want)
	}
}

// TestDtypes shows the bytes of a token of Llama 3.1 8B by type, and that quantized types
// bring their scales.
func TestDtypes(t *testing.T) {
	const elements = 32 * 2 * 8 * 128
	for name, want := range map[string]int64{
		"": elements * 2, "auto": elements * 2, "BF16": elements * 2, "half": elements * 2, "float32": elements * 4, "fp8": elements, "fp8_e5m2": elements,
		"int8": elements, "int8_per_token_head": elements + 32*2*8*4, "q8_0": elements * 34 / 32, "q4_0": elements * 18 / 32,
	} {
		if p := made(t, "llama-3.1-8b", Options{KVDtype: name}); p.Token.Whole != want {
			t.Errorf("%q: got %d bytes, want %d", name, p.Token.Whole, want)
		}
	}
	p := made(t, "nemotron-3-nano-30b", Options{StateDtype: "bf16"})
	if want := int64(23 * (3*(64*64+2*8*128) + 64*64*128) * 2); p.State.Whole != want || p.StateDtype != "bf16" {
		t.Errorf("states in bf16: got %d, want %d", p.State.Whole, want)
	}
	if p := made(t, "gpt-oss-20b", Options{Engine: LlamaCpp}); p.KVDtype != "fp16" || p.Token.Whole != 49152 {
		t.Errorf("llama.cpp: got %s, %d", p.KVDtype, p.Token.Whole)
	}
}

// TestMakeErrors shows what cannot be planned, and that all of it is said.
func TestMakeErrors(t *testing.T) {
	for _, tc := range []struct {
		model string
		o     Options
		want  []string
	}{
		{"gpt-oss-20b", Options{}, []string{"--kv-dtype: auto is not enough: the config has neither dtype nor torch_dtype"}},
		{"llama-3.1-8b", Options{KVDtype: "fp7"}, []string{`--kv-dtype: "fp7" is not known; one of auto, bf16, fp16`}},
		{"nemotron-3-nano-30b", Options{StateDtype: "q8_0"}, []string{`--state-dtype: "q8_0" is not a type of states`}},
		{"deepseek-v3", Options{KVDtype: "fp8_per_token_head"}, []string{"latent rows have no heads"}},
		{"gemma-3-27b", Options{}, []string{"--context: the config has no max_position_embeddings"}},
		{"llama-3.1-8b", Options{TP: 3}, []string{"--tp: 3 ranks do not divide 32 attention heads", "--tp: 3 ranks and 8 key/value heads do not divide each other"}},
		{"llama-3.1-8b", Options{PP: 33}, []string{"--pp: 33 stages, the model has 32 layers"}},
		{"jamba-1.5-mini", Options{Engine: LMCache}, []string{"--engine lmcache: how it keeps recurrent states is not known"}},
		{"llama-3.1-8b", Options{Engine: LlamaCpp, TP: 2, BlockTokens: 16}, []string{"--tp and --pp must be 1", "--block-tokens: llama.cpp has no blocks"}},
		{"llama-3.1-8b", Options{TP: 2000, PP: -1, BlockTokens: -1, Context: 1 << 30, Engine: "trt", Load: Load{Concurrency: -1, Rate: -1, PrefixShare: 1.1, ReuseWindow: -1}},
			[]string{"--tp: got 2000, want 1 to 1024", "--block-tokens", "--context", `--engine: got "trt"`, "--concurrency", "--requests-per-second", "--prefix-share", "--reuse-window"}},
		{"llama-3.1-8b", Options{Load: Load{Rate: 1}}, []string{"--mean-prompt is missing"}},
		{"llama-3.1-8b", Options{Load: Load{Rate: 1e6, MeanPrompt: 1 << 28, ReuseWindow: 1 << 62}}, []string{"too large to compute with"}},
	} {
		p, err := tryMake(t, config(t, tc.model), tc.o)
		if err == nil {
			t.Errorf("%s %+v: got %+v, want an error", tc.model, tc.o, p)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s %+v: %q lacks %q", tc.model, tc.o, err, part)
			}
		}
	}
}
