package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// value returns a figure of a plan by its name, -1 if it has none.
func value(p *Plan, name string) float64 {
	for _, s := range p.Load {
		if s.Name == name {
			return s.Value
		}
	}
	return -1
}

// TestWorkload compares the figures with what follows by hand for Llama 3.1 8B, of which a
// token is 131072 bytes.
func TestWorkload(t *testing.T) {
	p := made(t, "llama-3.1-8b", Options{Engine: VLLM, Load: Load{
		Concurrency: 32, Rate: 2, MeanPrompt: 8000, MeanOutput: 500, PrefixShare: 0.5, ReuseWindow: 15 * time.Minute}})
	const token, each = 131072.0, 4500 * 131072.0
	working := 2*each*900 + 4000*token
	flight := 32 * 8500 * token
	for name, want := range map[string]float64{
		"new tokens": 4500, "written a request": each, "written": 2 * each, "written a day": 2 * each * 86400, "read, at most": 2 * 4000 * token,
		"working set": working, "needed of it": -1, "in flight": flight, "requests at a time": -1,
		"memory above an SSD tier": (flight + 30*2*each) / 0.95, "memory without an SSD tier": working / 0.95, "SSD tier": working / 0.95,
		"object tier": working, "object tier, PUT": 2 * each / (64 << 20), "object tier, GET": 2 * 4000 / 16,
	} {
		if got := value(p, name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	want := Settings{MemorySize: "70GiB", MemoryAlone: "1042GiB", DiskSize: "1042GiB", StagingSize: "64MiB", Group: "MODEL_HASH_r0", BlockSize: "2MiB", BlockBytes: 2 << 20}
	if p.Settings != want {
		t.Errorf("got %+v, want %+v", p.Settings, want)
	}
}

// TestWorkloadForms shows the workloads of which less is known, and those of which less
// is needed than is written.
func TestWorkloadForms(t *testing.T) {
	few := made(t, "llama-3.1-8b", Options{Context: 1000, Load: Load{Concurrency: 10}})
	if got, want := value(few, "memory"), 10*1000*131072/0.95; got != want || few.Settings.DiskSize != "" || few.Settings.MemorySize != "1316MiB" {
		t.Errorf("concurrency alone: got %v, want %v, %+v", got, want, few.Settings)
	}
	rate := made(t, "llama-3.1-8b", Options{Load: Load{Rate: 0.1, MeanPrompt: 1000, ReuseWindow: time.Hour}})
	if value(rate, "requests at a time") != 3 || value(rate, "in flight") != 3*1000*131072 || value(rate, "read, at most") != -1 {
		t.Errorf("rate alone: got %+v", rate.Load)
	}
	none := made(t, "llama-3.1-8b", Options{})
	if len(none.Load) != 0 || none.Settings.MemorySize != "" || none.Settings.StagingSize != "64MiB" {
		t.Errorf("no workload: got %+v, %+v", none.Load, none.Settings)
	}
	// gpt-oss: 12 layers with a window of 128 tokens, of which 9 blocks of 16 are needed
	gpt := made(t, "gpt-oss-20b", Options{Engine: VLLM, KVDtype: "bf16", Load: Load{Rate: 1, MeanPrompt: 16000, ReuseWindow: 100 * time.Second, Concurrency: 1}})
	const file = 12 * 2048 * 16
	if got, want := value(gpt, "working set"), 100*2*1000.0*file; got != want {
		t.Errorf("windows: %v written, want %v", got, want)
	}
	if got, want := value(gpt, "needed of it"), 100*(1000+9)*float64(file); got != want {
		t.Errorf("windows: %v needed, want %v", got, want)
	}
	if got, want := value(gpt, "in flight"), float64((1000+9)*file); got != want {
		t.Errorf("windows: %v in flight, want %v", got, want)
	}
	// states: one a request with SGLang, one a block of 784 tokens with vLLM
	load := Load{Rate: 1, MeanPrompt: 7840, ReuseWindow: time.Second}
	state := made(t, "qwen3.5-27b", Options{Engine: SGLang, Load: load})
	if got, want := value(state, "written a request"), 7840*65536+48*3207168.0; got != want {
		t.Errorf("one state: got %v, want %v", got, want)
	}
	state = made(t, "qwen3.5-27b", Options{Engine: VLLM, Load: load})
	if got, want := value(state, "written a request"), 10*4*16*784*4096.0; got != want {
		t.Errorf("a state a block: got %v, want %v", got, want)
	}
	if got, want := value(state, "needed of it"), (10+3)*16*784*4096.0; got != want {
		t.Errorf("a state a block: %v needed, want %v", got, want)
	}
	slot := made(t, "llama-3.1-8b", Options{Engine: LlamaCpp, Context: 32768, Load: Load{Rate: 0.01, MeanPrompt: 1000, MeanOutput: 100, PrefixShare: 0.9, ReuseWindow: time.Minute}})
	if got := value(slot, "written a request"); got != 1100*131072 {
		t.Errorf("a slot: got %v", got)
	}
	if got, want := value(slot, "memory above an SSD tier"), (4<<30)/0.95; got != want || slot.Settings.StagingSize != "64MiB" {
		t.Errorf("memory for a slot: got %v, want %v", got, want)
	}
}

// TestSettings shows that staging has room for the largest block of a group, and which
// groups have one size.
func TestSettings(t *testing.T) {
	for _, tc := range []struct {
		model string
		o     Options
		want  Settings
	}{
		{"nemotron-h-56b", Options{Engine: VLLM}, Settings{StagingSize: "91MiB", Group: "MODEL_HASH_r0", BlockSize: "83200KiB", BlockBytes: 10 * 2080 * 4096}},
		{"llama-3.1-8b", Options{Engine: LMCache}, Settings{StagingSize: "64MiB", Group: "lmcache", BlockSize: "33554460B", BlockBytes: 33554460}},
		{"llama-3.1-8b", Options{Engine: SGLang}, Settings{StagingSize: "64MiB", Group: "sglang", BlockSize: "8MiB", BlockBytes: 8 << 20}},
		{"gemma-3-27b", Options{Engine: SGLang, Context: 1}, Settings{StagingSize: "64MiB", BlockBytes: 52 * 8192 * 64}},
		{"llama-3.1-8b", Options{}, Settings{StagingSize: "64MiB", BlockBytes: 2 << 20}},
	} {
		if got := made(t, tc.model, tc.o).Settings; got != tc.want {
			t.Errorf("%s %+v: got %+v, want %+v", tc.model, tc.o, got, tc.want)
		}
	}
}

// TestSpecs shows which models have a spec, and that a search takes it (C4).
func TestSpecs(t *testing.T) {
	for _, tc := range []struct {
		model  string
		o      Options
		groups int // 0: no spec
		hash   int
	}{
		{"llama-3.1-8b", Options{Engine: VLLM}, 0, 0},
		{"deepseek-v3", Options{Engine: VLLM}, 0, 0},
		{"gemma-3-27b", Options{Engine: SGLang, Context: 1}, 0, 0},
		{"mistral-7b-v0.1", Options{Engine: VLLM}, 1, 16},
		{"gemma-2-9b", Options{Engine: VLLM}, 2, 16},
		{"gemma-3-27b", Options{Engine: VLLM, Context: 1}, 7, 16},
		{"gemma-3-27b", Options{Context: 1}, 2, 16},
		{"gpt-oss-120b", Options{Engine: VLLM, KVDtype: "bf16", BlockTokens: 64}, 2, 64},
		{"llama-4-scout", Options{Engine: VLLM, BlockTokens: 256}, 4, 256},
		{"jamba-1.5-mini", Options{Engine: VLLM}, 8, 80},
		{"nemotron-h-56b", Options{Engine: VLLM}, 7, 2080},
		{"falcon-h1-7b", Options{Engine: VLLM}, 2, 1568},
		{"qwen3-next-80b", Options{Engine: VLLM}, 4, 544},
		{"qwen3.5-27b", Options{Engine: VLLM}, 4, 784},
	} {
		p := made(t, tc.model, tc.o)
		if tc.groups == 0 {
			if p.Spec != nil {
				t.Errorf("%s %+v: got %+v, want no spec", tc.model, tc.o, p.Spec)
			}
			continue
		}
		if p.Spec == nil || len(p.Spec.Groups) != tc.groups || p.Spec.HashBlockSize != tc.hash {
			t.Errorf("%s %+v: got %+v, want %d groups and hashes of %d tokens; %q", tc.model, tc.o, p.Spec, tc.groups, tc.hash, p.Notes)
			continue
		}
		if _, err := hybrid.New(*p.Spec); err != nil {
			t.Errorf("%s: %v", tc.model, err)
		}
	}
	odd := made(t, "llama-4-scout", Options{Engine: VLLM, BlockTokens: 48})
	if odd.Spec != nil || !hasNote(odd, "there is no spec of the groups: kvfs does not support: group 0: attention chunk (8192) must be a multiple of block_size (48)") {
		t.Errorf("blocks that chunks are no multiple of: %+v, %q", odd.Spec, odd.Notes)
	}
}

// TestWrite shows that the figures, the settings and the assumptions are printed.
func TestWrite(t *testing.T) {
	var b strings.Builder
	p := made(t, "gemma-3-27b", Options{Engine: VLLM, TP: 2, Context: 131072, Load: Load{Rate: 1, MeanPrompt: 1000, ReuseWindow: 90 * time.Minute}})
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Model gemma3_text: 62 layers, keys and values in bf16, 2 ranks (tp 2, pp 1)",
		"  swa   52      16 key/value heads of 128  1024 tokens  425984         -",
		"  a token                     507904       496 KiB   253952      248 KiB",
		"  a token beyond windows      81920        80 KiB    40960       40 KiB",
		"  a request of 131072 tokens  11173625856  10.4 GiB  5586812928  5.2 GiB",
		"  6      full  10      16      1310720          1.2 MiB  1",
		"what is written in 1h30m: all that comes again",
		"      block_size: 1280KiB",
		`        - {"name":"0","kind":"swa","block_size":16,"window":1024}`,
		"  - only text_config is read",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("there is no %q in\n%s", line, b.String())
		}
	}
}
