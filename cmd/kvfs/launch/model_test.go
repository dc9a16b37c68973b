package launch

import (
	"reflect"
	"strings"
	"testing"
)

// TestModel shows what is known of the model of a command, and that nothing is where its groups may be others than its
// configuration says (F1).
func TestModel(t *testing.T) {
	for _, c := range []struct {
		command string
		want    *Model
		why     string
	}{
		{"vllm serve /m", &Model{Path: "/m", Name: "/m", TP: 1, PP: 1}, ""},
		{"vllm serve --model /m --served-model-name a b", &Model{Path: "/m", Name: "a", TP: 1, PP: 1}, ""},
		{"python3 -m vllm.entrypoints.openai.api_server --model=/m", &Model{Path: "/m", Name: "/m", TP: 1, PP: 1}, ""},
		{
			"nice vllm serve /m -tp 2 -pp=3 --block-size 32 --dtype bfloat16 --kv-cache-dtype auto --mamba-ssm-cache-dtype float32",
			&Model{Path: "/m", Name: "/m", BlockTokens: 32, TP: 2, PP: 3, KVDtype: "bfloat16", StateDtype: "float32"}, "",
		},
		{"vllm serve /m --tensor-parallel-size 2 --kv_cache_dtype fp8", &Model{Path: "/m", Name: "/m", TP: 2, PP: 1, KVDtype: "fp8"}, ""},
		{"vllm serve /m -tp x", &Model{Path: "/m", Name: "/m", TP: -1, PP: 1}, ""},
		{"vllm serve --port 1 /m", nil, "does not name the model"},
		{"vllm serve /m --disable-hybrid-kv-cache-manager", nil, "--disable-hybrid-kv-cache-manager"},
		{"vllm serve /m --no-disable-hybrid-kv-cache-manager", &Model{Path: "/m", Name: "/m", TP: 1, PP: 1}, ""},
		{"vllm serve /m --speculative-config {}", nil, "--speculative-config"},
		{"vllm serve /m --config empty.yaml", nil, "empty.yaml sets model"},
		{"vllm serve /m --config lost.yaml", nil, ""}, // nothing is added
		{"vllm serve /m --kv-transfer-config {}", nil, ""},
		{"sglang serve --model-path /m", nil, ""},
	} {
		p, err := Make(row{command: c.command}.input())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p.Model, c.want) || !strings.Contains(p.NoModel, c.why) || (c.why == "") != (p.NoModel == "") {
			t.Errorf("%s: got %+v, %q, want %+v, %q", c.command, p.Model, p.NoModel, c.want, c.why)
		}
	}
}
