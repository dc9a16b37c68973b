package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// withoutTime puts T in the place of the time in a summary.
func withoutTime(out string) string {
	before, after, ok := strings.Cut(out, ") in ")
	if !ok {
		return out
	}
	if i := strings.IndexAny(after, "( \n"); i >= 0 {
		after = after[i:]
	}
	return before + ") in T" + after
}

// TestPrefetch shows what is asked for which command line, and what is printed, where
// standard error is no terminal: nothing of the progress.
func TestPrefetch(t *testing.T) {
	const progress = `{"done":1,"total":3,"bytes":10}` + "\n"
	const all = `{"results":"mlw","done":3,"total":3,"bytes":1048576,"in_memory":1,"loaded":1,"pending":1}` + "\n"
	const some = `{"results":".!!","done":3,"total":3,"absent":1,"failed":2,"errors":[{"path":"b","error":"timed out"}]}`
	const loaded = "loaded 1 block (1.0 MiB) in T (in memory before 1, being written 1)\n"
	abc := []string{`{"keys":["a","b","c"],"progress":true}`}
	checkCLI(t, newPrefetchCommand, "prefetch", []cliCase{
		{args: "/m/a /m/b /m/c", answers: []string{progress + all}, asked: abc, out: loaded},
		{args: "-0 --quiet --request r -", stdin: "/m/a\x00/m/b\x00/m/c", answers: []string{all},
			asked: []string{`{"keys":["a","b","c"],"request":"r","progress":true}`}, out: loaded},
		{args: "--mount /m --group g --template t --ranks 3 a b c", answers: []string{all},
			asked: []string{`{"hashes":["a","b","c"],"group":"g","template":"t","ranks":3,"progress":true}`}, out: loaded},
		{args: "--json /m/a /m/b /m/c", answers: []string{progress + all}, asked: abc,
			out: "{\n  \"results\": \"mlw\",\n  \"done\": 3,\n  \"total\": 3,\n  \"bytes\": 1048576,\n  \"in_memory\": 1,\n  \"loaded\": 1,\n  \"absent\": 0,\n  \"pending\": 1,\n  \"failed\": 0,\n  \"errors\": []\n}\n"},
		{args: "/m/a /m/b /m/c", answers: []string{some}, asked: abc, out: "loaded 0 blocks (0 B) in T (not there 1, failed 2)\n",
			err: "b: timed out\n/m/a: there is no such block\n3 of 3 blocks: not there, or could not be loaded", code: exit.Runtime},
		{args: "/m/a /m/b", answers: []string{all}, asked: []string{`{"keys":["a","b"],"progress":true}`},
			err: "prefetch in /m: answer of the daemon: results of 3 blocks, 2 were asked for", code: exit.Runtime},
		{args: "/m/a", answers: []string{`{"error":"no","field":"/keys/0"}`}, asked: []string{`{"keys":["a"],"progress":true}`},
			err: `prefetch in /m: "/m/a": no (field /keys/0)`, code: exit.Runtime},
	})
}

// TestPrefetchDirectories shows that what is absent and a directory is walked, after
// all that was named, and that its name counts as nothing.
func TestPrefetchDirectories(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"g/h/b", "g/\xff"} {
		writeBelow(t, dir, name)
	}
	f := newFakeDaemon(dir, "prefetch", func(request string) string {
		if strings.Contains(request, `"a"`) {
			return `{"results":"..l","done":3,"total":3,"bytes":1,"loaded":1,"absent":2}`
		}
		return `{"results":"!l","done":2,"total":2,"bytes":2,"loaded":1,"failed":1,"errors":[{"path":"g/\\xff","error":"timed out"}]}`
	})
	out, _, err := f.run(t, newPrefetchCommand, "", "--json", dir+"/a", dir+"/g/", dir+"/c")
	want := []string{`{"keys":["a","g","c"],"progress":true}`, `{"keys":["g/\\xff","g/h/b"],"escaped":true,"progress":true}`}
	if got := f.asked(); len(got) != 2 || strings.TrimSpace(got[0]) != want[0] || strings.TrimSpace(got[1]) != want[1] {
		t.Errorf("asked %q, want %q", got, want)
	}
	for _, part := range []string{`"results": "./l"`, `"done": 4`, `"total": 4`, `"bytes": 3`, `"loaded": 2`, `"absent": 1`, `"failed": 1`} {
		if !strings.Contains(out, part) {
			t.Errorf("no %s in %s", part, out)
		}
	}
	if text := fmt.Sprint(err); exit.Code(err) != exit.Runtime || !strings.HasPrefix(text, dir+"/a: there is no such block\ng/\\xff: timed out\n") || !strings.HasSuffix(text, "\n2 of 4 blocks: not there, or could not be loaded") {
		t.Errorf("got %v", err)
	}
}

// TestPrefetchMany shows that a long list becomes two requests, and that their results are in the order of the names.
func TestPrefetchMany(t *testing.T) {
	const n = client.RequestNames + 3
	f := newFakeDaemon("/m", "prefetch", func(request string) string {
		count, result := strings.Count(request, ","), "l" // between keys, and before progress
		if count == 3 {
			result = "m"
		}
		return fmt.Sprintf(`{"results":%q,"done":%d,"total":%d,"loaded":%d}`, strings.Repeat(result, count), count, count, count)
	})
	out, _, err := f.run(t, newPrefetchCommand, strings.Repeat("/m/x\n", n), "--json", "-")
	must(t, err)
	var got struct {
		Results             string
		Done, Total, Loaded int
	}
	must(t, json.Unmarshal([]byte(out), &got))
	if want := strings.Repeat("l", n-3) + "mmm"; len(f.asked()) != 2 || got.Results != want || got.Done != n || got.Total != n || got.Loaded != n {
		t.Errorf("%d requests, got %d results, %d done of %d, %d loaded", len(f.asked()), len(got.Results), got.Done, got.Total, got.Loaded)
	}
}

// TestPrefetchInterrupted shows that a command that is cancelled closes the descriptor while the
// daemon is silent, and says how far it was.
func TestPrefetchInterrupted(t *testing.T) {
	cancelled, stop := context.WithCancel(t.Context())
	stop()
	f := newFakeDaemon("/m", "prefetch", func(string) string { return hold })
	f.ctx = cancelled
	out, _, err := f.run(t, newPrefetchCommand, "", "/m/a", "/m/b")
	if fmt.Sprint(err) != "interrupted: at least 0 of 2 blocks are done, and 0 B loaded" || exit.Code(err) != exit.Runtime || out != "" {
		t.Errorf("got %q, %v", out, err)
	}
	f = newFakeDaemon("/m", "prefetch", func(string) string { return hold })
	f.ctx = cancelled
	if out, _, _ := f.run(t, newPrefetchCommand, "", "--json", "/m/a", "/m/b"); !strings.Contains(out, `"results": "??"`) {
		t.Errorf("got %q", out)
	}
}
