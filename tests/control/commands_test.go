package control

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// kvfsIn runs a command with a standard input.
func kvfsIn(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Binary(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("kvfs %q: %v", args, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("kvfs %q: not done after %v", args, harness.Deadline)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// wantLine fails unless one line of text has all words.
func wantLine(t testing.TB, text string, words ...string) {
	t.Helper()
	for line := range strings.Lines(text) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return
		}
	}
	t.Errorf("no line with %q in:\n%s", words, text)
}

// commandMount starts a daemon with a block in memory, two on disk, and none of g/none.
func commandMount(t *testing.T) *harness.Daemon {
	d := diskMount(t, harness.Options{})
	coldBlocks(t, d, 50_000, "g/"+hash(1), "g/"+hash(2))
	put(t, d.Path("g", hash(0)), []byte("hot"))
	return d
}

// TestCommandLookup runs kvfs lookup on paths, on hashes with a template, and on the hashes
// of a prompt; with names from standard input.
func TestCommandLookup(t *testing.T) {
	d := commandMount(t)
	names := []string{d.Path("g", hash(0)), d.Path("g", hash(1)), d.Path("g/none")}
	stdout, stderr, code := harness.Kvfs(t, append([]string{"lookup"}, names...)...)
	if code != 1 {
		t.Errorf("with a miss: exit code %d, want 1; %s", code, stderr)
	}
	wantLine(t, stdout, "hit", "memory", names[0])
	wantLine(t, stdout, "hit", "disk", names[1])
	wantLine(t, stdout, "miss", names[2])
	kvfs(t, append([]string{"lookup"}, names[:2]...)...)

	stdout, _, _ = kvfsIn(t, strings.Join(names, "\n")+"\n", "lookup", "--json", "-")
	var a existsAnswer
	decode(t, strings.TrimSpace(stdout), &a)
	if a.States != "md." || a.check() != nil {
		t.Errorf("from standard input: got %+v", a)
	}
	stdout, _, _ = kvfsIn(t, strings.Join(hashes(4), "\n"), "lookup", "--json", "--mount", d.Dir, "--template", "{group}/{hash}", "--group", "g", "-")
	decode(t, strings.TrimSpace(stdout), &a)
	if a.States != "mdd." {
		t.Errorf("hashes: got %+v", a)
	}
	stdout, stderr, code = kvfsIn(t, fullSpec, append([]string{"lookup", "--mount", d.Dir, "--spec", "@/dev/stdin", "--template", "g/{hash}", "--num-tokens", "100"}, hashes(5)...)...)
	if code != 0 || !strings.Contains(stdout, "48 tokens") {
		t.Errorf("longest hit: exit code %d, %s%s", code, stdout, stderr)
	}
	wantNotMount(t, "lookup", "/")
	wantStates(t, talk(t, d, "query"), "mdd", keysOf("g", hashes(3))...)
}

// wantNotMount fails unless a command says that a path is in no kvfs mount.
func wantNotMount(t testing.TB, args ...string) {
	t.Helper()
	if _, stderr, code := harness.Kvfs(t, args...); code != 5 || !strings.Contains(stderr, "kvfs mount") {
		t.Errorf("kvfs %q: exit code %d, %q, want 5", args, code, stderr)
	}
}

// TestCommandPrefetch runs kvfs prefetch on names, on a directory, and from standard input.
func TestCommandPrefetch(t *testing.T) {
	d := commandMount(t)
	c := talk(t, d, "query")
	stdout, stderr, code := harness.Kvfs(t, "prefetch", "--json", d.Path("g", hash(1)), d.Path("g/none"))
	if code != 1 || !strings.Contains(stdout, `"l."`) {
		t.Errorf("with a miss: exit code %d\n%s%s", code, stdout, stderr)
	}
	wantStates(t, c, "mmd", keysOf("g", hashes(3))...)
	stdout, stderr, code = kvfsIn(t, d.Path("g", hash(2))+"\n", "prefetch", "-")
	if code != 0 {
		t.Errorf("from standard input: exit code %d\n%s%s", code, stdout, stderr)
	}
	wantStates(t, c, "mmm", keysOf("g", hashes(3))...)
	kvfs(t, "evict", "--tier", "memory", d.Path("g"))
	harness.Poll(t, "all are on disk alone", func() bool {
		kvfs(t, "evict", "--tier", "memory", d.Path("g"))
		return c.states(keysOf("g", hashes(3))...) == "ddd"
	})
	wantLine(t, kvfs(t, "prefetch", d.Path("g")), "3 blocks")
	wantStates(t, c, "mmm", keysOf("g", hashes(3))...)
	wantNotMount(t, "prefetch", "/none")
}
