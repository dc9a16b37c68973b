package llama

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// server writes a program with the name of llama.cpp's server, by which kvfs run
// knows it, and returns its path. Its arguments are a request and what kvfs run adds.
func server(t *testing.T, e *Engine) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "llama-server")
	text := fmt.Sprintf("#!/bin/sh\nexec '%s' '%s' \"$@\"\n", e.node, e.script)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// beside runs one operation of the engine under kvfs run, with flags for that, and
// returns what the engine found. Nothing may be left mounted at dir.
func beside(t *testing.T, e *Engine, dir string, flags, program []string, op, file string) (Continuation, error) {
	t.Helper()
	command, err := e.Command(op, file)
	if err != nil {
		t.Fatal(err)
	}
	if program != nil {
		command = append(slices.Clone(program), command[2:]...)
	}
	args := append(append([]string{"run", "--mount", dir}, flags...), append([]string{"--"}, command...)...)
	stdout, stderr, code := harness.Kvfs(t, args...)
	if code != 0 {
		t.Fatalf("kvfs run: %s: exit code %d\n%s", op, code, stderr)
	}
	return Result(op, file, []byte(stdout))
}

// unmounted fails t if anything is mounted at dir.
func unmounted(t *testing.T, dir string) {
	t.Helper()
	if points := harness.MountPoints(dir); len(points) != 0 {
		t.Errorf("still mounted: %q", points)
	}
}

// ways are how the engine learns of the mount under kvfs run.
var ways = []struct {
	name    string
	flags   []string
	program func(*testing.T, *Engine) []string // nil: node itself
	group   string                             // directory that kvfs run has made for it
}{
	{"known by its name", nil, func(t *testing.T, e *Engine) []string { return []string{server(t, e)} }, "llama.cpp"},
	{"known through wrappers", nil, func(t *testing.T, e *Engine) []string {
		return []string{"env", "LC_ALL=C", "nice", "-n", "1", server(t, e)}
	}, "llama.cpp"},
	{"named by --engine", []string{"--engine", "llama.cpp"}, nil, "llama.cpp"},
	{"by KVFS_MOUNT", []string{"--engine", "none"}, nil, ""},
}

// TestRun shows that kvfs run hands the mount to the engine: by --slot-save-path, in
// the directory that has to be there, or by KVFS_MOUNT. The run that restores is
// another one than the run that saved, which has unmounted and given up its memory:
// the state comes from the SSD (E3, E5).
func TestRun(t *testing.T) {
	harness.KvfsOnly(t, "kvfs run")
	harness.NeedFuse(t)
	e := prepare(t)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "mnt")
			flags := append([]string{"--memory-size", "64MiB", "--disk", "path=" + harness.NewDiskDir(t, nil) + ",size=64MiB"}, way.flags...)
			var program []string
			if way.program != nil {
				program = way.program(t, e)
			}
			saved, err := beside(t, e, dir, flags, program, "save", "slot.bin")
			if err != nil {
				t.Fatal(err)
			}
			unmounted(t, dir)
			restored, err := beside(t, e, dir, flags, program, "restore", "slot.bin")
			if err != nil {
				t.Fatal(err)
			}
			unmounted(t, dir)
			if d := Diff(restored, saved); d != "" {
				t.Errorf("restored process differs: %s", d)
			}
			want := filepath.Join(dir, way.group, "slot.bin")
			if saved.Path != want || restored.Path != want {
				t.Errorf("saved to %s and restored from %s, want %s", saved.Path, restored.Path, want)
			}
		})
	}
}

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
