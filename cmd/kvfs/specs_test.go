package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/plan"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// TestSpecs shows what is asked and printed for each form of the command.
func TestSpecs(t *testing.T) {
	const gemma = `"gemma":{"hash_block_size":16,"scheduler_block_size":32,"cache_block_size":16,"groups":[` +
		`{"name":"0","kind":"full","block_size":16},{"name":"1","kind":"swa","block_size":32,"window":1024,"eagle":true}]}`
	const shown = "  hash blocks of 16 tokens, scheduler blocks of 32, cache blocks of 16\n" +
		"  GROUP  KIND  BLOCK  NOTE\n  0      full  16     -\n  1      swa   32     window 1024, draft layers\n"
	file := writeTemp(t, "spec.json", `{"hash_block_size": 16}`)
	checkCLI(t, newSpecsCommand, "specs", []cliCase{
		{args: "/m", answers: []string{`{"specs":{` + gemma + `}}` + "\n"}, asked: []string{"{}"}, out: "gemma\n" + shown},
		{args: "/m", answers: []string{`{"specs":{}}`}, asked: []string{"{}"}, out: "no specs\n"},
		{args: "/m --json", answers: []string{`{"specs":{` + gemma + `}}`}, asked: []string{"{}"}, out: `{"specs":{` + gemma + `}}` + "\n"},
		{args: "/m set gemma " + file, answers: []string{`{"specs":{` + gemma + `}}`}, asked: []string{`{"set":{"gemma":{"hash_block_size":16}}}`},
			out: "gemma: set\n" + shown},
		{args: "/m set gemma -", stdin: "{}\n", answers: []string{`{"error":"a; b","field":"/set/gemma"}`}, asked: []string{`{"set":{"gemma":{}}}`},
			err: "specs of /m: a; b (field /set/gemma)", code: exit.Runtime},
		{args: "/m remove gemma", answers: []string{`{"specs":{"gemma":{}}}`}, asked: []string{`{"remove":["gemma"]}`}, out: "gemma: removed\n"},
		{args: "/m set gemma /absent", err: "open /absent: no such file or directory", code: exit.Runtime},
		{args: "/m/g", err: "/m/g is not a kvfs mount: it is a directory in the mount /m", code: exit.NotMount},
	})
}

// TestSpecsCheck shows that a file is checked without a daemon, and that all that is
// wrong with it is said (C4).
func TestSpecsCheck(t *testing.T) {
	good := writeTemp(t, "good.json", `{"hash_block_size": 16, "retention_interval": 64, "groups": [
		{"kind": "full", "block_size": 16}, {"kind": "swa", "block_size": 32, "window": 1024}, {"kind": "mamba", "block_size": 16}]}`)
	code, out, stderr := runCLI("specs", "check", good)
	want := good + ": good\n  hash blocks of 16 tokens, scheduler blocks of 32, cache blocks of 16, stored every 64 tokens\n" +
		"  GROUP  KIND   BLOCK  NOTE\n  0      full   16     -\n  1      swa    32     window 1024\n  2      mamba  16     align\n"
	if code != exit.OK || out != want || stderr != "" {
		t.Errorf("got code %d, %q, %q; want %q", code, out, stderr, want)
	}
	if code, out, _ := runCLI("specs", "check", "--json", good); code != exit.OK || !strings.Contains(out, `"scheduler_block_size": 32`) || !strings.Contains(out, `"mode": "align"`) {
		t.Errorf("got code %d, %s", code, out)
	}
	for _, tc := range []struct {
		text string
		want []string
	}{
		{`{"hash_block_size": 16, "groups": [{"kind": "cross", "block_size": 16}, {"kind": "odd", "block_size": 24}]}`, []string{"Cross", "odd", "24"}},
		{`{"hash_block_size": 16, "group": []}`, []string{"group: there is no such member"}},
		{`{"hash_block_size": "16"}`, []string{"hash_block_size: got string, want number"}},
		{`{"groups": [{"kind": "full", "block_size": 1.5}]}`, []string{"groups[0].block_size: 1.5 is not a whole number"}},
		{`{`, []string{"byte 1: unexpected end of JSON input"}},
		{`[]`, []string{"not a JSON object"}},
	} {
		file := writeTemp(t, "bad.json", tc.text)
		code, out, stderr := runCLI("specs", "check", file)
		if code != exit.Runtime || out != "" || !strings.HasPrefix(stderr, "kvfs: "+file+": ") {
			t.Errorf("%s: got code %d, %q, %q", tc.text, code, out, stderr)
		}
		for _, part := range tc.want {
			if !strings.Contains(stderr, part) {
				t.Errorf("%s: no %q in %q", tc.text, part, stderr)
			}
		}
	}
}

// specEntrance is a way by which specs come in. It returns the reason against one, empty if
// it is taken.
type specEntrance struct {
	name  string
	named bool // the spec comes with its name
	try   func(t *testing.T, name, spec string) string
}

// askQueries asks a control file of a service without an engine, and returns its refusal.
func askQueries(t *testing.T, file, request string) string {
	t.Helper()
	s, err := query.New(query.Options{})
	must(t, err)
	var out bytes.Buffer
	if file == "specs" {
		s.SpecsFile(t.Context(), []byte(request), &out)
	} else {
		s.Query(t.Context(), nil, []byte(request), &out)
	}
	if err := client.Refused(out.Bytes()); err != nil {
		return err.Error()
	}
	return ""
}

// specEntrances are all of them but the output of plan, which only writes specs.
var specEntrances = []specEntrance{
	{"config check", true, func(t *testing.T, name, spec string) string {
		_, _, stderr := runCLI("config", "check", writeTemp(t, "kvfs.yaml", `{"specs": {`+name+`: `+spec+`}}`))
		return stderr
	}},
	{".kvfs/specs", true, func(t *testing.T, name, spec string) string {
		return askQueries(t, "specs", `{"set": {`+name+`: `+spec+`}}`)
	}},
	{".kvfs/query", false, func(t *testing.T, _, spec string) string {
		return askQueries(t, "query", `{"op": "load_mask", "hit_tokens": 0, "num_hashes": 0, "spec": `+spec+`}`)
	}},
	{"specs check", false, func(t *testing.T, _, spec string) string {
		_, _, stderr := runCLI("specs", "check", writeTemp(t, "spec.json", spec))
		return stderr
	}},
}

// TestSpecEntrances shows that all entrances take the same specs, and refuse the same for the
// same reason.
func TestSpecEntrances(t *testing.T) {
	cleanEnv(t)
	group := func(more string) string {
		return `{"hash_block_size": 16, "groups": [{"kind": "full", "block_size": 16` + more + `}]}`
	}
	spec := func(more string) string {
		return `{"hash_block_size": 16, "groups": [{"kind": "swa", "block_size": 16, "window": 64}]` + more + `}`
	}
	groups := func(n int) string {
		return `{"hash_block_size": 16, "groups": [` + strings.Repeat(`{"kind": "full", "block_size": 16}, `, n-1) + `{"kind": "full", "block_size": 16}]}`
	}
	long := func(n int) string { return strings.Repeat("n", n) }
	for _, tc := range []struct {
		what, name, spec string
		want             string // in every refusal; empty: it is taken
	}{
		{"plain", `"gemma"`, group(``), ""},
		{"name of a model", `"google/gemma-3 µ"`, group(``), ""},
		{"longest name", `"` + long(128) + `"`, group(``), ""},
		{"long name", `"` + long(129) + `"`, group(``), "cannot name a spec"},
		{"no name", `""`, group(``), "cannot name a spec"},
		{"direction", `"a\u202eb"`, group(``), "cannot name a spec"},
		{"full", `"a"`, spec(`, "scheduler_block_size": 32, "cache_block_size": 16, "eagle": true, "retention_interval": 0, "prefill_context_parallel": 1, "decode_context_parallel": 2`), ""},
		{"full group", `"a"`, group(`, "name": "layers/0", "window": 9, "chunk": 7, "mode": "x", "eagle": true, "ranks": 1024, "variant": -3, "uniform": true`), ""},
		{"null is nothing", `"a"`, spec(`, "scheduler_block_size": null, "eagle": null, "retention_interval": null, "decode_context_parallel": null`), ""},
		{"null of a group", `"a"`, group(`, "name": null, "window": null, "ranks": null`), ""},
		{"null groups", `"a"`, `{"hash_block_size": 16, "groups": null}`, "no list of groups"},
		{"null spec", `"a"`, `null`, " "},
		{"nothing", `"a"`, `{}`, "no list of groups"},
		{"no groups", `"a"`, `{"hash_block_size": 16, "groups": []}`, ""},
		{"too many groups", `"a"`, groups(65), "64"},
		{"unknown member", `"a"`, spec(`, "hash_blocksize": 1`), "hash_blocksize"},
		{"member of other case", `"a"`, spec(`, "Eagle": true`), "Eagle"},
		{"member twice", `"a"`, spec(`, "eagle": true, "eagle": true`), "eagle"},
		{"capacity_only", `"a"`, spec(`, "capacity_only": true`), "capacity_only"},
		{"huge interval", `"a"`, spec(`, "retention_interval": 99999999984`), "99999999984"},
		{"huge window that only is recorded", `"a"`, group(`, "window": 99999999999`), "99999999999"},
		{"huge variant", `"a"`, group(`, "variant": 99999999999`), "99999999999"},
		{"number beyond all", `"a"`, group(`, "variant": 99999999999999999999`), "variant"},
		{"many ranks", `"a"`, group(`, "ranks": 1025`), "1025"},
		{"unknown kind", `"a"`, `{"hash_block_size": 16, "groups": [{"kind": "odd", "block_size": 16}]}`, `"odd"`},
		{"long kind", `"a"`, `{"hash_block_size": 16, "groups": [{"kind": "` + long(5000) + `", "block_size": 16}]}`, "nnnn"},
		{"longest group name", `"a"`, group(`, "name": "` + long(255) + `"`), ""},
		{"long group name", `"a"`, group(`, "name": "` + long(256) + `"`), "cannot stand in a path"},
		{"group name with a control character", `"a"`, group(`, "name": "a\u0001b"`), ""},
		{"group name with NUL", `"a"`, group(`, "name": "a\u0000b"`), "cannot stand in a path"},
		{"group name from the root", `"a"`, group(`, "name": "/a"`), "cannot stand in a path"},
		{"group name up", `"a"`, group(`, "name": "x/../y"`), "cannot stand in a path"},
		{"control directory as a group", `"a"`, group(`, "name": ".kvfs"`), ""},
		{"string as a size", `"a"`, `{"hash_block_size": "16", "groups": []}`, "hash_block_size"},
		{"whole fraction", `"a"`, `{"hash_block_size": 16.0, "groups": []}`, "hash_block_size"},
		{"number as a name", `"a"`, group(`, "name": 0`), "name"},
		{"number as a flag", `"a"`, group(`, "eagle": 1`), "eagle"},
		{"object as groups", `"a"`, `{"hash_block_size": 16, "groups": {}}`, "groups"},
		{"list as a spec", `"a"`, `[]`, " "},
	} {
		for _, e := range specEntrances {
			if !e.named && strings.Contains(tc.want, "name a spec") {
				continue
			}
			got := e.try(t, tc.name, tc.spec)
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%s, %s: got %.300q, want %q", tc.what, e.name, got, tc.want)
			}
			if len(got) > 2000 {
				t.Errorf("%s, %s: a reason of %d bytes", tc.what, e.name, len(got))
			}
		}
	}
}

// TestPlannedSpecs shows that every entrance takes the specs that plan writes, in JSON and among
// its settings, and that they look the same wherever they are shown.
func TestPlannedSpecs(t *testing.T) {
	cleanEnv(t)
	planned := 0
	for _, model := range []string{"deepseek-v3", "falcon-h1-7b", "gemma-2-9b", "gemma-3-27b", "gpt-oss-20b", "jamba-1.5-mini", "llama-4-scout",
		"mistral-7b-v0.1", "nemotron-h-56b", "qwen3-next-80b"} {
		m, err := readModel(modelConfig(model), nil)
		if err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		p, err := plan.Make(m, plan.Options{TP: 1, PP: 1, Context: 4096, KVDtype: "bf16", StateDtype: "auto", Engine: plan.VLLM})
		if err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		if p.Spec == nil {
			continue
		}
		planned++
		var printed bytes.Buffer
		must(t, show.JSON(&printed, p.Spec))
		for _, e := range specEntrances {
			if got := e.try(t, `"a"`, printed.String()); got != "" {
				t.Errorf("%s, %s: %s", model, e.name, got)
			}
		}
		if _, _, stderr := runCLI("config", "check", writeTemp(t, "kvfs.yaml", p.YAML()[strings.Index(p.YAML(), "specs:"):])); stderr != "" {
			t.Errorf("%s: %s in\n%s", model, stderr, p.YAML())
		}
		if _, shown, _ := runCLI("specs", "check", "--json", writeTemp(t, "spec.json", printed.String())); shown != printed.String() {
			t.Errorf("%s: specs check shows %s, want %s", model, shown, &printed)
		}
		s, err := query.New(query.Options{Specs: map[string]hybrid.Spec{"a": *p.Spec}})
		must(t, err)
		var answer, want, got bytes.Buffer
		s.SpecsFile(t.Context(), []byte("{}"), &answer)
		if err := errors.Join(json.Compact(&got, answer.Bytes()), json.Compact(&want, printed.Bytes())); err != nil || got.String() != `{"specs":{"a":`+want.String()+"}}" {
			t.Errorf("%s: .kvfs/specs shows %s, %v; want %s", model, &got, err, &want)
		}
	}
	if planned < 5 {
		t.Errorf("only %d models have specs", planned)
	}
}
