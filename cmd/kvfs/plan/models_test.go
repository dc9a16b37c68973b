package plan

import (
	"testing"
)

// TestPublishedModels compares with what follows by hand from the published configs (A40).
// The file in testdata has the fields of the model's config.json that matter.
func TestPublishedModels(t *testing.T) {
	for _, tc := range []struct {
		name    string
		o       Options
		token   int64 // bytes that a token adds
		beyond  int64 // of it, in layers without window
		state   int64 // bytes of all recurrent states
		request int64 // bytes of o.Context tokens
	}{
		// layers x (key + value) x heads x size x bytes
		{"llama-3.1-8b", Options{}, 32 * 2 * 8 * 128 * 2, 131072, 0, 131072 * 131072},
		{"llama-3.1-70b", Options{}, 80 * 2 * 8 * 128 * 2, 327680, 0, 327680 * 131072},
		{"qwen3-8b", Options{Context: 32768}, 36 * 2 * 8 * 128 * 2, 147456, 0, 147456 * 32768},
		{"qwen2.5-72b", Options{Context: 32768}, 80 * 2 * 8 * 128 * 2, 327680, 0, 327680 * 32768},
		{"mixtral-8x7b", Options{}, 32 * 2 * 8 * 128 * 2, 131072, 0, 131072 * 32768},
		{"mistral-7b-v0.3", Options{}, 32 * 2 * 8 * 128 * 2, 131072, 0, 131072 * 32768},
		// windows in all layers: of a request their 4096 and 2047 tokens
		{"mistral-7b-v0.1", Options{}, 131072, 0, 0, 131072 * 4096},
		{"phi-3-mini-4k", Options{}, 32 * 2 * 32 * 96 * 2, 0, 0, 393216 * 2047},
		// windows in every second layer, and in five of six: 10 of 62 are without
		{"gemma-2-9b", Options{}, 42 * 2 * 8 * 256 * 2, 21 * 2 * 8 * 256 * 2, 0, 172032*8192 + 172032*4096},
		{"gemma-3-27b", Options{Context: 131072}, 62 * 2 * 16 * 128 * 2, 10 * 2 * 16 * 128 * 2, 0, 81920*131072 + 52*8192*1024},
		{"gpt-oss-20b", Options{KVDtype: "bf16"}, 24 * 2 * 8 * 64 * 2, 12 * 2 * 8 * 64 * 2, 0, 24576*131072 + 24576*128},
		{"gpt-oss-120b", Options{KVDtype: "bf16"}, 36 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2, 0, 36864*131072 + 36864*128},
		// a chunk of 8192 tokens in three of four layers
		{"llama-4-scout", Options{Context: 32768}, 48 * 2 * 8 * 128 * 2, 12 * 2 * 8 * 128 * 2, 0, 49152*32768 + 147456*8192},
		// layers x (latent + rope) x bytes
		{"deepseek-v3", Options{}, 61 * (512 + 64) * 2, 70272, 0, 70272 * 163840},
		{"deepseek-v3", Options{KVDtype: "fp8"}, 61 * (512 + 64), 35136, 0, 35136 * 163840},
		{"kimi-k2", Options{}, 61 * (512 + 64) * 2, 70272, 0, 70272 * 131072},
		{"kimi-k2.5", Options{}, 61 * (512 + 64) * 2, 70272, 0, 70272 * 262144},
		// Mamba 1: 28 layers x (3 steps + 16) x 8192 channels x 2 bytes; 4 layers of attention
		{"jamba-1.5-mini", Options{Context: 1000}, 4 * 2 * 8 * 128 * 2, 16384, 28 * (3 + 16) * 8192 * 2, 16384*1000 + 8716288},
		// Mamba 2: (3 steps x (heads x size + 2 x groups x state) + heads x size x state) x bytes
		{"nemotron-h-56b", Options{}, 10 * 2 * 8 * 128 * 2, 40960, 54 * (3*(256*64+2*8*256) + 256*64*256) * 2, 40960*8192 + 459620352},
		{"nemotron-3-nano-30b", Options{}, 6 * 2 * 2 * 128 * 2, 6144, 23 * (3*(64*64+2*8*128)*2 + 64*64*128*4), 6144*262144 + 49082368},
		{"nemotron-3-ultra-550b", Options{}, 12 * 2 * 2 * 128 * 2, 12288, 48 * (3*(256*64+2*8*128)*2 + 256*64*128*4), 12288*262144 + 407961600},
		{"falcon-h1-7b", Options{}, 44 * 2 * 2 * 128 * 2, 45056, 44 * (3*(3072+2*256) + 24*128*256) * 2, 45056*262144 + 70152192},
		// gated delta nets: (3 steps x (2 x key heads x size + value heads x size)) + value heads x size x size
		{"qwen3-next-80b", Options{}, 12 * 2 * 2 * 256 * 2, 24576, 36 * (3*(2*16*128+32*128) + 32*128*128) * 2, 24576*262144 + 39518208},
		{"qwen3.5-27b", Options{}, 16 * 2 * 4 * 256 * 2, 65536, 48 * (3*(2*16*128+48*128)*2 + 48*128*128*4), 65536*262144 + 48*3207168},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := made(t, tc.name, tc.o)
			if p.Token.Whole != tc.token || p.BeyondToken.Whole != tc.beyond || p.Request.Whole != tc.request {
				t.Errorf("got %d bytes a token, %d beyond windows, %d a request of %d; want %d, %d, %d",
					p.Token.Whole, p.BeyondToken.Whole, p.Request.Whole, p.Context, tc.token, tc.beyond, tc.request)
			}
			var state int64
			if p.State != nil {
				state = p.State.Whole
			}
			if state != tc.state {
				t.Errorf("got %d bytes of state, want %d", state, tc.state)
			}
			if p.Token.Rank != p.Token.Whole || p.Request.Rank != p.Request.Whole {
				t.Errorf("one rank keeps %d and %d, all keep %d and %d", p.Token.Rank, p.Request.Rank, p.Token.Whole, p.Request.Whole)
			}
		})
	}
}

// TestFileSizes compares with sizes that engines were seen to write: of vLLM and llm-d
// 2 MiB, 32 MiB and 5 MiB, of SGLang 8 MiB, of LMCache 32 MiB with a header of 28 bytes.
func TestFileSizes(t *testing.T) {
	for _, tc := range []struct {
		model string
		o     Options
		want  []Group
	}{
		{"llama-3.1-8b", Options{Engine: VLLM}, []Group{{Name: "0", Kind: "full", Layers: 32, BlockTokens: 16, FileBytes: 2 << 20, Files: 1}}},
		{"llama-3.1-8b", Options{Engine: VLLM, BlockTokens: 256}, []Group{{Name: "0", Kind: "full", Layers: 32, BlockTokens: 256, FileBytes: 32 << 20, Files: 1}}},
		{"llama-3.1-70b", Options{Engine: VLLM, TP: 8}, []Group{{Name: "0", Kind: "full", Layers: 80, BlockTokens: 16, FileBytes: 5 << 20, Files: 1}}},
		{"deepseek-v3", Options{Engine: VLLM, TP: 8, BlockTokens: 64}, []Group{{Name: "0", Kind: "mla", Layers: 61, BlockTokens: 64, FileBytes: 70272 * 64, Files: 1}}},
		{"llama-3.1-8b", Options{Engine: SGLang}, []Group{{Kind: "full", Layers: 32, BlockTokens: 64, FileBytes: 8 << 20, Files: 1}}},
		{"llama-3.1-8b", Options{Engine: SGLang, TP: 4}, []Group{{Kind: "full", Layers: 32, BlockTokens: 64, FileBytes: 2 << 20, Files: 4}}},
		{"llama-3.1-8b", Options{Engine: SGLang, BlockTokens: 1}, []Group{{Kind: "full", Layers: 32, BlockTokens: 1, FileBytes: 128 << 10, Files: 1}}},
		{"deepseek-v3", Options{Engine: SGLang, TP: 8}, []Group{{Kind: "mla", Layers: 61, BlockTokens: 64, FileBytes: 70272 * 64, Files: 1}}},
		{"gemma-3-27b", Options{Engine: SGLang, TP: 2, Context: 1}, []Group{
			{Name: "swa", Kind: "swa", Layers: 52, Window: 1024, BlockTokens: 64, FileBytes: 52 * 4096 * 64, Files: 2},
			{Kind: "full", Layers: 10, BlockTokens: 64, FileBytes: 10 * 4096 * 64, Files: 2}}},
		{"nemotron-3-nano-30b", Options{Engine: SGLang}, []Group{
			{Name: "mamba", Kind: "mamba", Layers: 23, FileBytes: 49082368, Files: 1},
			{Kind: "full", Layers: 6, BlockTokens: 64, FileBytes: 6144 * 64, Files: 1}}},
		{"llama-3.1-8b", Options{Engine: LMCache}, []Group{{Kind: "full", Layers: 32, BlockTokens: 256, FileBytes: 32<<20 + 28, Files: 1}}},
		{"llama-3.1-8b", Options{Engine: LMCache, TP: 2, PP: 2}, []Group{{Kind: "full", Layers: 32, BlockTokens: 256, FileBytes: 8<<20 + 28, Files: 4}}},
		{"gpt-oss-20b", Options{Engine: LMCache, KVDtype: "bf16"}, []Group{{Kind: "full", Layers: 24, BlockTokens: 256, FileBytes: 49152*256 + 28, Files: 1}}},
		{"llama-3.1-8b", Options{Engine: LlamaCpp, Context: 32768}, []Group{{Kind: "full", Layers: 32, FileBytes: 4 << 30, Files: 1}}},
		{"nemotron-3-nano-30b", Options{Engine: LlamaCpp, Context: 1000}, []Group{{Kind: "full", Layers: 52, FileBytes: 6144*1000 + 23*(3*(64*64+2*8*128)+64*64*128)*4, Files: 1}}},
	} {
		p := made(t, tc.model, tc.o)
		if len(p.Groups) != len(tc.want) {
			t.Errorf("%s %+v: got %+v, want %+v", tc.model, tc.o, p.Groups, tc.want)
			continue
		}
		for i, g := range p.Groups {
			if g != tc.want[i] {
				t.Errorf("%s %+v: group %d is %+v, want %+v", tc.model, tc.o, i, g, tc.want[i])
			}
		}
	}
}

// TestVLLMGroups shows how vLLM splits layers of several kinds into groups of equal files.
func TestVLLMGroups(t *testing.T) {
	type group struct {
		kind   string
		layers int
	}
	for _, tc := range []struct {
		model  string
		o      Options
		want   []group
		tokens int
		file   int64
	}{
		// 10 layers in a group, as there are 10 without window: 52 make six groups
		{"gemma-3-27b", Options{Context: 1}, []group{{"swa", 9}, {"swa", 9}, {"swa", 9}, {"swa", 9}, {"swa", 8}, {"swa", 8}, {"full", 10}}, 16, 10 * 8192 * 16},
		{"gpt-oss-20b", Options{KVDtype: "bf16"}, []group{{"swa", 12}, {"full", 12}}, 16, 12 * 2048 * 16},
		{"llama-4-scout", Options{}, []group{{"chunk", 12}, {"chunk", 12}, {"chunk", 12}, {"full", 12}}, 16, 12 * 4096 * 16},
		// 3,207,168 bytes of state and 4,096 a token: 784 tokens, as vLLM itself arrives at
		{"qwen3.5-27b", Options{}, []group{{"mamba", 16}, {"mamba", 16}, {"mamba", 16}, {"full", 16}}, 784, 16 * 784 * 4096},
		// ranks that hold less state and less attention come to the same blocks
		{"qwen3.5-27b", Options{TP: 4}, []group{{"mamba", 16}, {"mamba", 16}, {"mamba", 16}, {"full", 16}}, 784, 16 * 784 * 4096},
		{"qwen3.5-27b", Options{BlockTokens: 1025}, []group{{"mamba", 16}, {"mamba", 16}, {"mamba", 16}, {"full", 16}}, 1040, 16 * 1040 * 4096},
		{"falcon-h1-7b", Options{}, []group{{"full", 44}, {"mamba", 44}}, 1568, 44 * 1568 * 1024},
	} {
		tc.o.Engine = VLLM
		p := made(t, tc.model, tc.o)
		var got []group
		for _, g := range p.Groups {
			got = append(got, group{string(g.Kind), g.Layers})
			if g.BlockTokens != tc.tokens || g.FileBytes != tc.file || g.Files != 1 {
				t.Errorf("%s %+v: group %s has %d files of %d bytes for %d tokens, want 1, %d, %d",
					tc.model, tc.o, g.Name, g.Files, g.FileBytes, g.BlockTokens, tc.file, tc.tokens)
			}
		}
		if len(got) != len(tc.want) {
			t.Errorf("%s: got %v, want %v", tc.model, got, tc.want)
			continue
		}
		for i := range got {
			if got[i] != tc.want[i] {
				t.Errorf("%s: got %v, want %v", tc.model, got, tc.want)
				break
			}
		}
	}
	if p := made(t, "gemma-3-27b", Options{Engine: VLLM, Context: 1}); !hasNote(p, "8 of 70 layer slots are padding, that is 11 %") {
		t.Errorf("nothing is said of padding: %q", p.Notes)
	}
}

// TestVLLMNearlyEqual shows that kinds that differ by less than half become one group each.
func TestVLLMNearlyEqual(t *testing.T) {
	types := make([]string, 25)
	for i := range types {
		types[i] = []string{"sliding_attention", "full_attention"}[i%2]
	}
	types[0] = "full_attention" // 13 full, 12 with a window
	text := changed(t, "gpt-oss-20b", map[string]any{"num_hidden_layers": 25, "layer_types": types, "torch_dtype": "bfloat16"})
	p, err := tryMake(t, text, Options{Engine: VLLM})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Groups) != 2 || p.Groups[0].Layers != 13 || p.Groups[0].Kind != "full" || p.Groups[1].FileBytes != 13*2048*16 {
		t.Errorf("got %+v", p.Groups)
	}
}
