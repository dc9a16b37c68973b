package replay

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// recipes are the pages that must be there. (B34, E19)
var recipes = []string{"vllm.md", "sglang.md", "lmcache.md", "llm-d.md", "llama.cpp.md", "nixl.md", "dynamo.md", "mooncake.md", "other.md"}

// fence is a block of code of a page.
type fence struct {
	page, language, text string
	line                 int
}

func (f fence) String() string { return fmt.Sprintf("%s:%d", f.page, f.line) }

// fences returns the blocks of code of a text in Markdown.
func fences(page, text string) []fence {
	var found []fence
	var open *fence
	for i, line := range strings.SplitAfter(text, "\n") {
		language, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fenced && open == nil:
			open = &fence{page: page, language: language, line: i + 1}
		case fenced:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.text += line
		}
	}
	return found
}

func recipeFences(t *testing.T, language string) []fence {
	t.Helper()
	var found []fence
	for _, page := range recipes {
		for _, f := range fences(page, Page(t, page)) {
			if f.language == language {
				found = append(found, f)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("no %s in the recipes", language)
	}
	return found
}

// TestShell shows that bash, and shellcheck where it is installed, have nothing
// to say about the commands of the recipes. (E19)
func TestShell(t *testing.T) {
	for _, f := range recipeFences(t, "bash") {
		checkShell(t, f.String(), f.text)
	}
}

func checkShell(t *testing.T, where, text string) {
	t.Helper()
	checks := [][]string{{"bash", "-n"}}
	if _, err := exec.LookPath("shellcheck"); err == nil {
		checks = append(checks, []string{"shellcheck", "--shell=bash", "--exclude=SC2154", "-"})
	}
	for _, check := range checks {
		cmd := exec.Command(check[0], check[1:]...)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %s: %v\n%s", where, check[0], err, out)
		}
	}
}

var quotedObject = regexp.MustCompile(`(?s)'(\{.*?\})'`)

// TestJSON shows that what the commands pass as JSON is that.
func TestJSON(t *testing.T) {
	n := 0
	for _, f := range recipeFences(t, "bash") {
		for _, m := range quotedObject.FindAllStringSubmatch(f.text, -1) {
			n++
			if !json.Valid([]byte(m[1])) {
				t.Errorf("%s: no JSON: %s", f, m[1])
			}
		}
	}
	if n < 5 {
		t.Errorf("found %d objects", n)
	}
}

// TestConfig shows that kvfs takes the configurations of the recipes. (B34)
func TestConfig(t *testing.T) {
	n := 0
	for _, f := range recipeFences(t, "yaml") {
		if !strings.HasPrefix(f.text, "# kvfs.yaml\n") {
			continue
		}
		n++
		file := filepath.Join(t.TempDir(), "kvfs.yaml")
		if err := os.WriteFile(file, []byte(f.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, errs, code := harness.Kvfs(t, "config", "check", "--elsewhere", file); code != 0 {
			t.Errorf("%s: kvfs config check: exit code %d\n%s%s", f, code, out, errs)
		}
	}
	if n < len(recipes) {
		t.Errorf("found %d configurations, want one a page", n)
	}
}

var (
	kvfsCall = regexp.MustCompile(`\bkvfs ([a-z]+)\b([^|;&#` + "`" + `\n]*)`)
	longFlag = regexp.MustCompile(`--[a-z][a-z0-9-]*`)
)

// TestCalls shows that the commands of kvfs that the recipes use exist, with
// their flags.
func TestCalls(t *testing.T) {
	help := map[string]string{}
	for _, f := range recipeFences(t, "bash") {
		for _, m := range kvfsCall.FindAllStringSubmatch(strings.ReplaceAll(f.text, "\\\n", " "), -1) {
			if help[m[1]] == "" {
				out, errs, code := harness.Kvfs(t, m[1], "--help")
				if code != 0 {
					t.Errorf("%s: kvfs %s --help: exit code %d\n%s", f, m[1], code, errs)
				}
				help[m[1]] = out
			}
			ours, _, _ := strings.Cut(m[2], " -- ") // what follows is the flags of the command that kvfs runs
			for _, flag := range longFlag.FindAllString(ours, -1) {
				if !slices.Contains(longFlag.FindAllString(help[m[1]], -1), flag) {
					t.Errorf("%s: kvfs %s has no %s", f, m[1], flag)
				}
			}
		}
	}
	for _, c := range []string{"status", "events", "lookup", "prefetch"} {
		if help[c] == "" {
			t.Errorf("no recipe uses kvfs %s", c)
		}
	}
}
