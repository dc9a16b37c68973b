package control

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// specsAnswer is the answer of .kvfs/specs.
type specsAnswer struct {
	Specs map[string]map[string]any `json:"specs"`
	refusal
}

func (c *dialogue) specs(request string) specsAnswer {
	c.t.Helper()
	var a specsAnswer
	decode(c.t, string(c.raw(request)), &a)
	if a.Error != "" {
		c.t.Fatalf("specs %s: %s (%s)", cut(request), a.Error, a.Field)
	}
	return a
}

// gemma is a spec of full attention and a sliding window.
const gemma = `{"hash_block_size":16,"groups":[{"kind":"full","block_size":16},{"name":"w","kind":"swa","block_size":32,"window":1024}]}`

// TestSpecs sets, gets and removes specs: answers have the defaults filled in, a set is
// all or nothing, and a spec that is refused leaves the one that was there (C2, C4).
func TestSpecs(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{Config: "specs:\n  configured:\n    hash_block_size: 16\n    groups: [{kind: full, block_size: 16}]\n"})
	c := talk(t, d, "specs")
	names := func(a specsAnswer) string {
		var all []string
		for _, name := range []string{"configured", "gemma", "other"} {
			if a.Specs[name] != nil {
				all = append(all, name)
			}
		}
		if len(all) != len(a.Specs) {
			t.Errorf("specs that nobody set: %v", a.Specs)
		}
		return strings.Join(all, " ")
	}
	if got := names(c.specs(`{}`)); got != "configured" {
		t.Errorf("at the start: %q, want the configured one", got)
	}
	set := c.specs(`{"set":{"gemma":` + gemma + `}}`)
	if names(set) != "gemma" {
		t.Errorf("set answers with %q", names(set))
	}
	wantGemma := func(spec map[string]any) {
		t.Helper()
		if spec["hash_block_size"] != 16.0 || spec["scheduler_block_size"] != 32.0 || spec["cache_block_size"] != 16.0 {
			t.Errorf("defaults of the spec: %v", spec)
		}
		groups, _ := spec["groups"].([]any)
		if len(groups) != 2 {
			t.Fatalf("groups: %v", spec["groups"])
		}
		first, second := groups[0].(map[string]any), groups[1].(map[string]any)
		if first["name"] != "0" || second["name"] != "w" || second["window"] != 1024.0 || second["kind"] != "swa" || second["block_size"] != 32.0 {
			t.Errorf("groups: %v", groups)
		}
	}
	wantGemma(set.Specs["gemma"])
	// What was answered can be set again as it stands, from another descriptor.
	again, err := json.Marshal(obj{"set": set.Specs})
	must(t, "spec", err)
	other := talk(t, d, "specs")
	wantGemma(other.specs(string(again)).Specs["gemma"])
	wantGemma(c.specs(`{"get":["gemma"]}`).Specs["gemma"])
	if got := names(c.specs(`{"get":[]}`)); got != "" {
		t.Errorf("get of nothing: %q", got)
	}
	// All or nothing.
	answer := c.raw(`{"set":{"other":` + fullSpec + `,"gemma":{"hash_block_size":16,"groups":[{"kind":"cross","block_size":16}]}}}`)
	wantRefused(t, answer, "/set/gemma", "CrossAttention")
	all := c.specs(`{}`)
	if names(all) != "configured gemma" {
		t.Errorf("after a set that was refused: %q", names(all))
	}
	wantGemma(all.Specs["gemma"])
	wantRefused(t, c.raw(`{"remove":["gemma","none"]}`), "/remove/1", "none")
	if got := names(c.specs(`{}`)); got != "configured gemma" {
		t.Errorf("after a remove that was refused: %q", got)
	}
	if got := names(c.specs(`{"remove":["gemma"]}`)); got != "gemma" {
		t.Errorf("remove answers with %q", got)
	}
	c.specs(`{"set":{"other":` + fullSpec + `}}`)
	if got := names(c.specs(`{}`)); got != "configured other" {
		t.Errorf("in the end: %q", got)
	}
	d.Restart()
	if got := names(talk(t, d, "specs").specs(`{}`)); got != "configured" {
		t.Errorf("after a restart: %q, want the configured one alone", got)
	}
}

// TestSpecsRefused gives specs that are not supported: all reasons are in one error,
// as they are for a spec within a query (C3, C4, C10, C24).
func TestSpecsRefused(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	specs, query := talk(t, d, "specs"), talk(t, d, "query")
	for _, row := range []struct {
		name, spec string
		words      []string
	}{
		{"cross attention", `{"hash_block_size":16,"groups":[{"kind":"full","block_size":16},{"kind":"cross","block_size":16}]}`, []string{"CrossAttention"}},
		{"a kind that does not exist", `{"hash_block_size":16,"groups":[{"kind":"banana","block_size":16}]}`, []string{"banana"}},
		{"no kind", `{"hash_block_size":16,"groups":[{"block_size":16}]}`, nil},
		{"mamba with another block than the cache", `{"hash_block_size":16,"cache_block_size":16,"groups":[{"kind":"full","block_size":16},{"kind":"mamba","block_size":64,"mode":"all"}]}`, []string{"64"}},
		{"several groups with context parallelism", `{"hash_block_size":16,"decode_context_parallel":2,"groups":[{"kind":"full","block_size":16},{"kind":"swa","block_size":16,"window":64}]}`, []string{"PCP", "dcp=2"}},
		{"a block that the hash block does not divide", `{"hash_block_size":16,"groups":[{"kind":"full","block_size":24}]}`, []string{"24", "16"}},
		{"a scheduler block that is no multiple", `{"hash_block_size":16,"scheduler_block_size":48,"groups":[{"kind":"full","block_size":32}]}`, []string{"48", "32"}},
		{"a window of nothing", `{"hash_block_size":16,"groups":[{"kind":"swa","block_size":16}]}`, []string{"window"}},
		{"a block of nothing", `{"hash_block_size":16,"groups":[{"kind":"full"}]}`, nil},
		{"no hash block", `{"groups":[{"kind":"full","block_size":16}]}`, nil},
		{"a negative block", `{"hash_block_size":-16,"groups":[{"kind":"full","block_size":-16}]}`, nil},
		{"two groups of one name", `{"hash_block_size":16,"groups":[{"name":"a","kind":"full","block_size":16},{"name":"a","kind":"full","block_size":16}]}`, nil},
		{"two reasons and a third", `{"hash_block_size":16,"prefill_context_parallel":2,"groups":[{"kind":"cross","block_size":16},{"kind":"mamba","block_size":64,"mode":"all"}]}`,
			[]string{"CrossAttention", "64", "PCP", "; "}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, q := &dialogue{t, specs.fd}, &dialogue{t, query.fd}
			wantRefused(t, s.raw(`{"set":{"x":`+row.spec+`}}`), "/set/x", row.words...)
			wantRefused(t, q.raw(`{"op":"longest_hit","hashes":[],"spec":`+row.spec+`}`), "/spec", row.words...)
			wantRefused(t, s.raw(`{"get":["x"]}`), "/get/0")
		})
	}
}
