package main

import (
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestWhy shows what is asked and printed, for names that are there and such as are not.
func TestWhy(t *testing.T) {
	const verdict = `{"path":"g/a","verdict":"evicted","text":"evicted from memory 12.5 s ago"}`
	const answer = `{"op":"why","verdicts":[` + verdict + `,{"path":"b","verdict":"present"}]}` + "\n"
	checkCLI(t, newWhyCommand, "query", []cliCase{
		{args: "/m/g/a /m/absent/../b", answers: []string{answer}, asked: []string{`{"op":"why","keys":["g/a","b"]}`},
			out: "/m/g/a: evicted from memory 12.5 s ago\n/m/absent/../b: present\n"},
		{args: "--json -0 -", stdin: "/m/g/a\x00/m/b\x00", answers: []string{answer}, asked: []string{`{"op":"why","keys":["g/a","b"]}`},
			out: verdict + "\n" + `{"path":"b","verdict":"present"}` + "\n"},
		{args: "/m/a", answers: []string{answer}, asked: []string{`{"op":"why","keys":["a"]}`},
			err: "why in /m: answer of the daemon: verdicts on 2 blocks, 1 were asked for", code: exit.Runtime},
		{args: "/m/a", answers: []string{`{"error":"bad","field":"/keys/0"}`}, asked: []string{`{"op":"why","keys":["a"]}`},
			err: `why in /m: "/m/a": bad (field /keys/0)`, code: exit.Runtime},
		{args: "--json -", stdin: "/m/\xff", answers: []string{`{"verdicts":[` + verdict + `]}`}, asked: []string{`{"op":"why","keys":["\\xff"],"escaped":true}`},
			out: verdict + "\n"},
	})
}
