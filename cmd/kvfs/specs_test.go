package main

import (
	"strings"
	"testing"
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
			err: "specs of /m: a; b (field /set/gemma)", code: exitRuntime},
		{args: "/m remove gemma", answers: []string{`{"specs":{"gemma":{}}}`}, asked: []string{`{"remove":["gemma"]}`}, out: "gemma: removed\n"},
		{args: "/m set gemma /absent", err: "open /absent: no such file or directory", code: exitRuntime},
		{args: "/m/g", err: "/m/g is not a kvfs mount: it is in the one at /m", code: exitNotMount},
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
	if code != exitOK || out != want || stderr != "" {
		t.Errorf("got code %d, %q, %q; want %q", code, out, stderr, want)
	}
	if code, out, _ := runCLI("specs", "check", "--json", good); code != exitOK || !strings.Contains(out, `"scheduler_block_size": 32`) || !strings.Contains(out, `"mode": "align"`) {
		t.Errorf("got code %d, %s", code, out)
	}
	for _, tc := range []struct {
		text string
		want []string
	}{
		{`{"hash_block_size": 16, "groups": [{"kind": "cross", "block_size": 16}, {"kind": "odd", "block_size": 24}]}`, []string{"Cross", "odd", "24"}},
		{`{"hash_block_size": 16, "group": []}`, []string{`unknown field "group"`}},
		{`{"hash_block_size": "16"}`, []string{"hash_block_size: got string, want int"}},
		{`{"groups": [{"kind": "full", "block_size": 1.5}]}`, []string{"groups.block_size: got number 1.5, want int"}},
		{`{`, []string{"byte 1: unexpected end of JSON input"}},
		{`[]`, []string{"not a JSON object"}},
	} {
		file := writeTemp(t, "bad.json", tc.text)
		code, out, stderr := runCLI("specs", "check", file)
		if code != exitRuntime || out != "" || !strings.HasPrefix(stderr, "kvfs: "+file+": ") {
			t.Errorf("%s: got code %d, %q, %q", tc.text, code, out, stderr)
		}
		for _, part := range tc.want {
			if !strings.Contains(stderr, part) {
				t.Errorf("%s: no %q in %q", tc.text, part, stderr)
			}
		}
	}
}
