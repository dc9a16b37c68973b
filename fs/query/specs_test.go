package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

func specs(t *testing.T, s *Service, request string) string {
	t.Helper()
	return answerOf(t, func(out *bytes.Buffer) { s.SpecsFile(t.Context(), []byte(request), out) })
}

const gemmaText = `{"hash_block_size": 16, "scheduler_block_size": 16, "cache_block_size": 16, "eagle": false, "prefill_context_parallel": 1, "decode_context_parallel": 1, "groups": [` +
	`{"name": "0", "kind": "full", "block_size": 16, "eagle": false, "variant": 0, "uniform": false}, ` +
	`{"name": "1", "kind": "swa", "block_size": 16, "window": 32, "eagle": false, "variant": 0, "uniform": false}]}`

// TestSpecs shows a dialogue about specs (C2).
func TestSpecs(t *testing.T) {
	s, _ := newService(t, nil)
	const mamba = `{"hash_block_size": 16, "scheduler_block_size": 64, "cache_block_size": 64, "eagle": true, "retention_interval": 128, "prefill_context_parallel": 1, "decode_context_parallel": 1, "groups": [` +
		`{"name": "layers.0", "kind": "full", "block_size": 64, "eagle": true, "ranks": 4, "variant": 2, "uniform": true}, ` +
		`{"name": "1", "kind": "mamba", "block_size": 64, "mode": "align", "eagle": false, "variant": 0, "uniform": false}]}`
	for _, c := range []struct{ request, want string }{
		{`{}`, `{"specs": {"gemma": ` + gemmaText + `}}`},
		{`{"get": ["gemma"]}`, `{"specs": {"gemma": ` + gemmaText + `}}`},
		{`{"set": {"m": {"hash_block_size": 16, "eagle": true, "retention_interval": 128, "groups": [{"name": "layers.0", "kind": "full", "block_size": 64, "eagle": true, "ranks": 4, "variant": 2, "uniform": true}, {"kind": "mamba", "block_size": 64}]}}}`,
			`{"specs": {"m": ` + mamba + `}}`},
		{`{"set": {"m": ` + mamba + `, "g2": ` + gemmaText + `}}`, `{"specs": {"g2": ` + gemmaText + `, "m": ` + mamba + `}}`},
		{`{"remove": ["g2", "g2"]}`, `{"specs": {"g2": ` + gemmaText + `}}`},
		{`{}`, `{"specs": {"gemma": ` + gemmaText + `, "m": ` + mamba + `}}`},
		{`{"remove": ["gemma", "m"]}`, `{"specs": {"gemma": ` + gemmaText + `, "m": ` + mamba + `}}`},
		{`{}`, `{"specs": {}}`},
	} {
		if got := specs(t, s, c.request); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.request, got, c.want)
		}
	}
}

// TestSpecErrors shows that a request which cannot be obeyed changes nothing, and that all reasons
// are told (C3, C4, C24). TestSpecEntrances of cmd/kvfs has more specs.
func TestSpecErrors(t *testing.T) {
	s, _ := newService(t, nil)
	for _, c := range []struct {
		request, field string
		want           []string
	}{
		{`{"set": {"a": {"hash_block_size": 16, "groups": [{"kind": "cross", "block_size": 16}, {"kind": "none", "block_size": 17}]}}}`, "/set/a", []string{"set.a: ", "CrossAttentionSpec; ", `"none"`}},
		{`{"set": {"gemma": {"hash_block_size": 3, "groups": []}, "a/b": {"groups": []}, "c": {}}}`, "/set/a~1b", []string{"set.a/b: ", "; set.c: "}},
		{`{"set": {"": ` + gemmaText + `}}`, "/set/", []string{`"" cannot name a spec`}},
		{`{"set": {"a": {"hash_block_size": "x"}}}`, "/set/a/hash_block_size", []string{"set.a.hash_block_size: got string, want number"}},
		{`{"set": {"a": {"groups": [{"windows": 1}]}}}`, "/set/a/groups/0/windows", []string{"set.a.groups[0].windows: there is no such member"}},
		{`{"set": []}`, "/set", []string{"got list, want object"}},
		{`{"get": ["gemma", "x"]}`, "/get/1", []string{`get[1]: there is no spec named "x"`}},
		{`{"remove": ["gemma", "x"]}`, "/remove/1", []string{`remove[1]: there is no spec named "x"`}},
		{`{"get": "gemma"}`, "/get", []string{"got string, want list"}},
		{`{"get": [], "remove": []}`, "/remove", []string{"set, get and remove exclude each other"}},
		{`{"list": []}`, "/list", []string{"there is no such member"}},
		{`{"set": {"a": {}, "a": {}}}`, "/set/a", []string{"is there twice"}},
		{``, "", []string{"the request is empty"}},
	} {
		got := decode[failure](t, specs(t, s, c.request))
		for _, want := range c.want {
			if got.Field != c.field || !strings.Contains(got.Error, want) {
				t.Errorf("%s: got %q %q, want %q", c.request, got.Field, got.Error, want)
			}
		}
		if all := specs(t, s, `{}`); all != `{"specs": {"gemma": `+gemmaText+`}}` {
			t.Fatalf("%s: then %s", c.request, all)
		}
	}
}

// TestSpecLimit shows that no more than so many are kept, and that those there can still be
// replaced.
func TestSpecLimit(t *testing.T) {
	s, _ := newService(t, nil)
	set := map[string]json.RawMessage{}
	for i := range hybrid.MaxSpecs - 1 {
		set[fmt.Sprint("s", i)] = json.RawMessage(gemmaText)
	}
	text, err := json.Marshal(map[string]any{"set": set})
	must(t, err)
	for range 2 {
		if got := specs(t, s, string(text)); strings.Contains(got, "error") {
			t.Fatalf("got %s", got)
		}
	}
	got := decode[failure](t, specs(t, s, `{"set": {"gemma": `+gemmaText+`, "more": `+gemmaText+`}}`))
	if got.Error != "set: there would be 1025 specs, 1024 is the limit" {
		t.Errorf("got %+v", got)
	}
	tooMany := map[string]hybrid.Spec{}
	for i := range hybrid.MaxSpecs + 1 {
		tooMany[fmt.Sprint(i)] = gemma
	}
	if _, err := New(Options{Engine: &fakeEngine{}, Specs: tooMany}); err == nil || !strings.Contains(err.Error(), "1024 is the limit") {
		t.Errorf("New: %v", err)
	}
}

// TestParallel asks for all things at once, while specs come and go.
func TestParallel(t *testing.T) {
	s, _ := newService(t, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { // ends after its requests
			for i := range 50 {
				ask(t, s, `{"op": "exists", "hashes": `+list(hashList(i*7))+`, "group": "g"}`)
				ask(t, s, `{"op": "longest_hit", "spec": "gemma", "hashes": `+list(hashList(i))+`}`)
				specs(t, s, `{"set": {"s`+fmt.Sprint(i)+`": `+gemmaText+`}}`)
				specs(t, s, `{}`)
				askBinary(t, s, binaryForm{op: 1, size: 4, count: i, hashes: make([]byte, 4*i)})
				prefetch(t, s, `{"keys": `+list(hashList(i))+`, "progress": true}`)
			}
		})
	}
	wg.Wait()
}
