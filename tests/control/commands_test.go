package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestCommandPrefetchInterrupted sends Ctrl-C to kvfs prefetch: it ends, and what has not begun
// is not loaded.
func TestCommandPrefetchInterrupted(t *testing.T) {
	d, g := gateMount(t, harness.Options{MemorySize: "512MiB"})
	keys := keysOf("g", hashes(150))
	coldBlocks(t, d, mib, keys...)
	g.hold()
	cmd := exec.Command(harness.Binary(t), "prefetch", "--mount", d.Dir, "--group", "g", "--request", "req-ctrl-c", "-")
	cmd.Stdin = strings.NewReader(strings.Join(hashes(150), "\n"))
	must(t, "start", cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	g.await(t)
	must(t, "signal", cmd.Process.Signal(unix.SIGINT))
	within(t, "the command ends", func() { cmd.Wait() })
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	jobs(t, d) // The daemon answers this after it has seen that the descriptor of the command is closed.
	g.release()
	noneLeft(t, d)
	harness.Poll(t, "no job is left", func() bool { return !strings.Contains(jobs(t, d), "req-ctrl-c") })
	states := talk(t, d, "query").states(keys...)
	if n := strings.Count(states, "m"); n == len(keys) {
		t.Errorf("all %d blocks were loaded", n)
	}
}

// TestCommandPin runs kvfs pin, unpin and ttl on names, directories and standard input.
func TestCommandPin(t *testing.T) {
	d := commandMount(t)
	pinned := func(i int) string {
		t.Helper()
		v, err := getxattr(d.Path("g", hash(i)), "user.kvfs.pinned")
		must(t, "getxattr", err)
		return v
	}
	kvfs(t, "pin", d.Path("g", hash(0)))
	if pinned(0) != "1" || pinned(1) != "0" {
		t.Errorf("pin of one: got %s and %s", pinned(0), pinned(1))
	}
	if _, stderr, code := kvfsIn(t, d.Path("g", hash(1))+"\n"+d.Path("g", hash(2))+"\n", "pin", "-"); code != 0 {
		t.Errorf("pin from standard input: exit code %d, %s", code, stderr)
	}
	if pinned(1) != "1" || pinned(2) != "1" {
		t.Errorf("pin from standard input: got %s and %s", pinned(1), pinned(2))
	}
	kvfs(t, "unpin", d.Path("g"))
	if pinned(0)+pinned(1)+pinned(2) != "000" {
		t.Errorf("unpin of a directory: got %s, %s, %s", pinned(0), pinned(1), pinned(2))
	}
	_, stderr, code := kvfsIn(t, d.Path("g/none")+"\n"+d.Path("g", hash(0))+"\n", "pin", "-")
	if code != 1 || !strings.Contains(stderr, "none") || pinned(0) != "1" {
		t.Errorf("pin with an absent name: exit code %d, %q, the other one is %s", code, stderr, pinned(0))
	}
	kvfs(t, "ttl", "10h", d.Path("g"))
	if v, err := getxattr(d.Path("g", hash(0)), "user.kvfs.ttl"); err != nil || v == "" || v == "0" {
		t.Errorf("ttl: got %q, %v", v, err)
	}
	if _, stderr, code := kvfsIn(t, d.Path("g", hash(2))+"\n", "ttl", "20ms", "-"); code != 0 {
		t.Errorf("ttl from standard input: exit code %d, %s", code, stderr)
	}
	harness.Poll(t, "the block has expired", func() bool { return tierOf(d.Path("g", hash(2))) == "" })
	if _, _, code := harness.Kvfs(t, "ttl", "soon", d.Path("g")); code == 0 {
		t.Error("ttl soon: exit code 0")
	}
	wantNotMount(t, "pin", "/none")
}

// TestCommandWhy runs kvfs why on blocks that are there and on names without a block.
func TestCommandWhy(t *testing.T) {
	d := commandMount(t)
	put(t, d.Path("g/x"), []byte("x"))
	unlink(t, d.Path("g/x"))
	out := kvfs(t, "why", d.Path("g/x"), d.Path("g/none"), d.Path("g", hash(1)))
	wantLine(t, out, d.Path("g/x"), "removed")
	wantLine(t, out, d.Path("g/none"), "stored")
	wantLine(t, out, d.Path("g", hash(1)), "disk")
	stdout, stderr, code := kvfsIn(t, d.Path("g/x")+"\n", "why", "--json", "-")
	var v verdict
	decode(t, strings.TrimSpace(stdout), &v)
	if code != 0 || v.Verdict != "removed" || v.Path != "g/x" {
		t.Errorf("as JSON: exit code %d, %s%s", code, stdout, stderr)
	}
	wantNotMount(t, "why", "/none")
}

// TestCommandEvents runs kvfs events to a number of lines.
func TestCommandEvents(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	f := follow(t, d, nil)
	put(t, d.Path("g/a"), []byte("x"))
	first := f.stored("memory", "", "g/a")
	put(t, d.Path("other/b"), []byte("x"))
	unlink(t, d.Path("g/a"))
	since := "--since=" + jsonText(first.Seq)
	out := kvfs(t, "events", since, "-n", "2", "--group", "g", "--json", d.Dir)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var e event
	if len(lines) != 2 || unmarshalEvent([]byte(lines[0]), &e) != nil || e != first {
		t.Errorf("got %q, want the first event %v", lines, first)
	}
	out = kvfs(t, "events", since, "-n", "1", "--event", "removed", d.Dir)
	wantLine(t, out, "removed", "g/a", "unlink")
	wantNotMount(t, "events", "/")
}

func jsonText(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// TestCommandSpecs runs kvfs specs: set from standard input, shown, removed, refused.
func TestCommandSpecs(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	if _, stderr, code := kvfsIn(t, gemma, "specs", d.Dir, "set", "gemma", "-"); code != 0 {
		t.Fatalf("set: exit code %d, %s", code, stderr)
	}
	wantLine(t, kvfs(t, "specs", d.Dir), "gemma")
	var a specsAnswer
	decode(t, strings.TrimSpace(kvfs(t, "specs", "--json", d.Dir)), &a)
	if a.Specs["gemma"]["scheduler_block_size"] != 32.0 {
		t.Errorf("as JSON: %+v", a)
	}
	const bad = `{"hash_block_size":16,"decode_context_parallel":2,"groups":[{"kind":"cross","block_size":16},{"kind":"full","block_size":16}]}`
	for _, args := range [][]string{{"specs", d.Dir, "set", "bad", "-"}, {"specs", "check", "-"}} {
		_, stderr, code := kvfsIn(t, bad, args...)
		if code != 1 || !strings.Contains(stderr, "CrossAttention") || !strings.Contains(stderr, "PCP") {
			t.Errorf("kvfs %q: exit code %d, %q, want all reasons", args, code, stderr)
		}
	}
	if _, stderr, code := kvfsIn(t, gemma, "specs", "check", "-"); code != 0 {
		t.Errorf("check: exit code %d, %s", code, stderr)
	}
	kvfs(t, "specs", d.Dir, "remove", "gemma")
	if _, _, code := harness.Kvfs(t, "specs", d.Dir, "remove", "gemma"); code != 1 {
		t.Errorf("remove of nothing: exit code %d, want 1", code)
	}
	wantNotMount(t, "specs", "/")
}

// TestCommandEvict runs kvfs evict on a list from standard input.
func TestCommandEvict(t *testing.T) {
	d := commandMount(t)
	waitOnDisk(t, d.Path("g", hash(0)))
	stdout, stderr, code := kvfsIn(t, d.Path("g", hash(0))+"\n\n"+d.Path("g", hash(1))+"\n", "evict", "--tier", "memory", "-")
	if code != 0 || !strings.Contains(stdout, "1 block") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	wantStates(t, talk(t, d, "query"), "ddd", keysOf("g", hashes(3))...)
	if _, stderr, code = kvfsIn(t, d.Path("g/none")+"\n", "evict", "--tier", "memory", "-"); code != 1 || !strings.Contains(stderr, "not found") {
		t.Errorf("of what is not there: exit code %d, %q", code, stderr)
	}
}
