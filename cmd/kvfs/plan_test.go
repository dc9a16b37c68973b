package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// planArgs is the worked example of docs/sizing.md, without the name of the file.
var planArgs = strings.Fields("--engine vllm --tp 2 --kv-dtype bf16 --requests-per-second 0.5 " +
	"--mean-prompt 12000 --mean-output 800 --prefix-share 0.6 --reuse-window 30m --concurrency 16")

// modelConfig returns the path of a published config.
func modelConfig(name string) string {
	return filepath.Join("plan", "testdata", name+".json")
}

// TestPlan shows the forms of the command (A40).
func TestPlan(t *testing.T) {
	code, out, errs := runCLI("plan", "--model-config", modelConfig("llama-3.1-8b"))
	if code != exit.OK || errs != "" || !strings.Contains(out, "  a token                     131072") {
		t.Errorf("exit code %d, stderr %q, stdout %s", code, errs, out)
	}
	code, out, errs = runCLI(append([]string{"plan", "--json", "--model-config", modelConfig("gpt-oss-20b")}, planArgs...)...)
	var p struct {
		Token    struct{ Whole, Rank int64 }
		Groups   []struct{ Kind string }
		Settings map[string]any
		Spec     json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != exit.OK || errs != "" {
		t.Fatalf("exit code %d, stderr %q, %v in %s", code, errs, err, out)
	}
	if p.Token.Whole != 49152 || p.Token.Rank != 24576 || len(p.Groups) != 2 || p.Settings["groups.block_size"] != "384KiB" {
		t.Errorf("got %+v", p)
	}
	spec := writeTemp(t, "spec.json", string(p.Spec))
	if code, out, errs := runCLI("specs", "check", spec); code != exit.OK || !strings.Contains(out, "swa   16     window 128") {
		t.Errorf("specs check: exit code %d, %s%s", code, out, errs)
	}
}

// TestPlanErrors shows what is said of wrong usage and of configs that cannot be read.
func TestPlanErrors(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exit.Usage, "kvfs: --model-config is missing: give the config.json of the model (see kvfs plan --help)\n"},
		{[]string{"x"}, exit.Usage, "kvfs: unknown command \"x\" for \"kvfs plan\""},
		{[]string{"--tp", "x"}, exit.Usage, "kvfs: invalid argument \"x\" for \"--tp\" flag"},
		{[]string{"--model-config", "/absent"}, exit.Runtime, "kvfs: open /absent: no such file or directory\n"},
		{[]string{"--model-config", "plan"}, exit.Runtime, "kvfs: plan: is a directory\n"},
		{[]string{"--model-config", writeTemp(t, "a.json", "{")}, exit.Runtime, "a.json: byte 1: unexpected end of JSON input\n"},
		{[]string{"--model-config", writeTemp(t, "b.json", `{"model_type": "llama", "num_attention_heads": "8"}`)}, exit.Runtime, "b.json: num_hidden_layers: is missing, and model_type llama needs it\n"},
		{[]string{"--model-config", writeTemp(t, "c.json", strings.Repeat(" ", maxModelConfig+1))}, exit.Runtime, "c.json: more than 8388608 bytes\n"},
		{[]string{"--model-config", modelConfig("llama-3.1-8b"), "--tp", "0", "--pp", "0"}, exit.Runtime, "kvfs: --tp: got 0, want 1 to 1024\nkvfs: --pp: got 0, want 1 to 1024\n"},
	} {
		code, out, errs := runCLI(append([]string{"plan"}, tc.args...)...)
		if code != tc.code || out != "" || !strings.Contains(errs, tc.want) {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q; want %d, %q", tc.args, code, out, errs, tc.code, tc.want)
		}
	}
}

// TestPlanSettings shows that the configuration takes the settings of each model and engine (F1).
func TestPlanSettings(t *testing.T) {
	cleanEnv(t)
	files, err := filepath.Glob(modelConfig("*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no configs: %v", err)
	}
	for _, file := range files {
		for _, engine := range []string{"vllm", "sglang", "lmcache", ""} {
			code, out, errs := runCLI("plan", "--model-config", file, "--engine", engine, "--kv-dtype", "bf16", "--context", "8192",
				"--requests-per-second", "0.01", "--mean-prompt", "1000", "--reuse-window", "1m", "--concurrency", "1")
			if strings.Contains(errs, "--engine lmcache: how it keeps recurrent states is not known") {
				continue
			}
			_, settings, found := strings.Cut(out, "\nSettings\n")
			settings, _, _ = strings.Cut(settings, "Without an SSD tier")
			if code != exit.OK || !found {
				t.Errorf("%s for %q: exit code %d, %s", file, engine, code, errs)
				continue
			}
			config := writeTemp(t, "kvfs.yaml", settings)
			if code, out, errs := runCLI("config", "check", "--elsewhere", "--config", config); code != exit.OK {
				t.Errorf("%s for %q: exit code %d, %s%s of\n%s", file, engine, code, out, errs, settings)
			}
		}
	}
}

// TestPlanDocs shows that the worked example of the page is what the command prints.
func TestPlanDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/sizing.md")
	must(t, err)
	_, example, found := strings.Cut(string(page), "\n$ kvfs plan --model-config config.json "+strings.Join(planArgs[:6], " "))
	_, example, _ = strings.Cut(example, "\n\n") // the rest of the command, and the empty line below it
	example, _, end := strings.Cut(example, "```")
	if !found || !end {
		t.Fatal("docs/sizing.md has no example that begins with the command")
	}
	code, out, errs := runCLI(append([]string{"plan", "--model-config", modelConfig("gpt-oss-20b")}, planArgs...)...)
	if code != exit.OK || out != example {
		t.Errorf("exit code %d, %s\ngot:\n%s\nthe page has:\n%s", code, errs, out, example)
	}
}
