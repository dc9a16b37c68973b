package llama

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestRecipe shows that kvfs run starts the command on the page of the engine.
func TestRecipe(t *testing.T) {
	harness.KvfsOnly(t, "kvfs run")
	text, err := os.ReadFile(filepath.Join(harness.Root(t), "docs", "engines", "llama.cpp.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\\\n", "")
	var run, alone []string // the commands of the page, in words
	for line := range strings.Lines(page) {
		words := strings.Fields(line)
		switch {
		case len(words) > 2 && words[0] == "kvfs" && words[1] == "run" && run == nil:
			run = words[2:]
		case len(words) > 1 && words[0] == "llama-server" && alone == nil:
			alone = words
		}
	}
	if run == nil || alone == nil {
		t.Fatalf("the page has no command: %q, %q", run, alone)
	}
	stdout, stderr, code := harness.Kvfs(t, append([]string{"run", "--print"}, run...)...)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	if want := "\ncommand: " + strings.Join(alone, " ") + "\n"; !strings.Contains(stdout, want) {
		t.Errorf("kvfs run starts\n%s\nthe page says%s", stdout, want)
	}
}
