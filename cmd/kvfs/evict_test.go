package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestEvict shows what is asked of the daemon for which command line, and what is
// printed.
func TestEvict(t *testing.T) {
	const some = `{"blocks":96,"bytes":1610612736,"kept_total":3,"kept":[{"path":"g/a","reason":"only copy"},{"path":"g/b","reason":"open"}]}` + "\n"
	const none = `{"blocks":0,"bytes":0,"kept_total":2,"kept":[{"path":"x","reason":"not found"},{"path":"y","reason":"not found"}]}`
	checkCLI(t, newEvictCommand, "evict", []cliCase{
		{args: "--tier memory --all /m", answers: []string{some}, asked: []string{`{"tier":"memory","all":true}`},
			out: "evicted 96 blocks (1.5 GiB) from memory\nkept 3 blocks:\n  only copy  g/a\n  open       g/b\n  and 1 more\n"},
		{args: "--tier disk --force /m/g/a /m/h/", answers: []string{`{"blocks":1,"bytes":10}`}, asked: []string{`{"tier":"disk","paths":["g/a","h"],"force":true}`},
			out: "evicted 1 block (10 B) from disk\n"},
		{args: "--tier memory /m/", answers: []string{`{}`}, asked: []string{`{"tier":"memory","all":true}`}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory /m/a - /m/c", stdin: "/m/b b\n\n/m/d/../e", answers: []string{`{}`},
			asked: []string{`{"tier":"memory","paths":["a","b b","e","c"]}`}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory -0 -", stdin: "/m/a\nb\x00/m/c\x00", answers: []string{`{}`},
			asked: []string{`{"tier":"memory","paths":["a\nb","c"]}`}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory --json /m/g", answers: []string{some}, asked: []string{`{"tier":"memory","paths":["g"]}`},
			out: "{\n  \"tier\": \"memory\",\n  \"blocks\": 96,\n  \"bytes\": 1610612736,\n  \"kept_total\": 3,\n  \"kept\": [\n" +
				"    {\n      \"path\": \"g/a\",\n      \"reason\": \"only copy\"\n    },\n    {\n      \"path\": \"g/b\",\n      \"reason\": \"open\"\n    }\n  ]\n}\n"},
		{args: "--tier memory /m/x /m/y", answers: []string{none}, asked: []string{`{"tier":"memory","paths":["x","y"]}`},
			out: "evicted 0 blocks (0 B) from memory\nkept 2 blocks:\n  not found  x\n  not found  y\n", err: "x and 1 more: not found", code: exit.Runtime},
		{args: "--tier tape --all /m", answers: []string{`{"error":"no tier \"tape\""}`}, asked: []string{`{"tier":"tape","all":true}`},
			err: `evict from /m: no tier "tape"`, code: exit.Runtime},
		{args: "--tier memory --all /m", answers: []string{"?"}, asked: []string{`{"tier":"memory","all":true}`},
			err: "evict from /m: answer of the daemon: ", code: exit.Runtime},
		{args: "--tier memory --all /m/g", err: "/m/g is not a kvfs mount: it is a directory in the mount /m", code: exit.NotMount},
		{args: "--tier memory /m/a /proc/b", err: "/proc/b is not in a kvfs mount", code: exit.NotMount},
		{args: "--tier memory -", stdin: "/m/\xff\n", err: `"/m/\xff" is not UTF-8`, code: exit.Runtime},
	})
}

// TestEvictMany shows that a long list becomes two requests, and that what is printed is the sum of their answers.
func TestEvictMany(t *testing.T) {
	const n = client.RequestNames + 3
	f := newFakeDaemon("/m", "evict", func(request string) string {
		return fmt.Sprintf(`{"blocks":%d,"bytes":1,"kept_total":1,"kept":[{"path":"x","reason":"open"}]}`, strings.Count(request, `"x"`))
	})
	out, _, err := f.run(t, newEvictCommand, strings.Repeat("/m/x\n", n), "--tier=memory", "-")
	must(t, err)
	if want := fmt.Sprintf("evicted %d blocks (2 B) from memory\nkept 2 blocks:\n  open  x\n  open  x\n", n); out != want || len(f.asked()) != 2 {
		t.Errorf("%d requests, printed %q, want %q", len(f.asked()), out, want)
	}
}
