package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestLookup shows what is asked and printed for paths and for hashes, and that all
// but hits end with code 1.
func TestLookup(t *testing.T) {
	const some = `{"op":"exists","states":"mdpwl.","hits":3,"pending":1,"late":1,"misses":1,"prefix":3}` + "\n"
	const two = `{"op":"exists","states":"mm","hits":2,"prefix":2}`
	checkCLI(t, newLookupCommand, "query", []cliCase{
		{args: "/m/g/a /m/./b", answers: []string{two}, asked: []string{`{"op":"exists","keys":["g/a","b"]}`},
			out: "hit      memory  /m/g/a\nhit      memory  /m/./b\n", stderr: "2 blocks: 2 in memory\n"},
		{args: "-", stdin: "/m/a\n/m/b\n/m/c\n/m/d\n/m/e\n/m/f\n", answers: []string{some}, asked: []string{`{"op":"exists","keys":["a","b","c","d","e","f"]}`},
			out: "hit      memory  /m/a\nhit      disk    /m/b\nhit      peer    /m/c\npending  -       /m/d\nlate     -       /m/e\nmiss     -       /m/f\n",
			err: "6 blocks: 1 in memory, 1 on disk, 1 at a peer, 1 pending, 1 late, 1 missing", code: exit.Runtime},
		{args: "-0 -", stdin: "/m/a\x00/m/b", answers: []string{two}, asked: []string{`{"op":"exists","keys":["a","b"]}`},
			out: "hit      memory  /m/a\nhit      memory  /m/b\n", stderr: "2 blocks: 2 in memory\n"},
		{args: "--mount /m --group g0 --template {group}/{rank}/{hash} --ranks 2 --request r-1 9f 77", answers: []string{two},
			asked: []string{`{"op":"exists","hashes":["9f","77"],"group":"g0","template":"{group}/{rank}/{hash}","ranks":2,"request":"r-1"}`},
			out:   "hit      memory  9f\nhit      memory  77\n", stderr: "2 blocks: 2 in memory\n"},
		{args: "--promote --no-lease --deadline 1500us /m/a", answers: []string{`{"states":"x","hits":0}`},
			asked: []string{`{"op":"exists","keys":["a"],"lease":false,"promote":true,"deadline_ms":2}`},
			out:   "x        -       /m/a\n", err: "1 block: ", code: exit.Runtime},
		{args: "--deadline 0 --json /m/a /m/b", answers: []string{two}, asked: []string{`{"op":"exists","keys":["a","b"],"deadline_ms":0}`},
			out: `{"op":"exists","states":"mm","hits":2,"pending":0,"late":0,"misses":0,"prefix":2}` + "\n"},
		{args: "--json /m/a", answers: []string{`{"states":".","misses":1}`}, asked: []string{`{"op":"exists","keys":["a"]}`},
			out: `{"op":"exists","states":".","hits":0,"pending":0,"late":0,"misses":1,"prefix":0}` + "\n",
			err: "1 block: 1 missing", code: exit.Runtime},
		{args: "/m/a /m/b", answers: []string{`{"error":"keys[1]: too long","field":"/keys/1"}`}, asked: []string{`{"op":"exists","keys":["a","b"]}`},
			err: `look up in /m: "/m/b": keys[1]: too long (field /keys/1)`, code: exit.Runtime},
		{args: "/m/a", answers: []string{two}, asked: []string{`{"op":"exists","keys":["a"]}`},
			err: "look up in /m: answer of the daemon: states of 2 blocks, 1 were asked for", code: exit.Runtime},
		{args: "-0 -", stdin: "/m/\xff\x00/m/a\\\n", answers: []string{two}, asked: []string{`{"op":"exists","keys":["\\xff","a\\\\\\n"],"escaped":true}`},
			out: "hit      memory  /m/\\xff\nhit      memory  /m/a\\\\\\n\n", stderr: "2 blocks: 2 in memory\n"},
		{args: "-e -", stdin: "/m/\\xff\n/m/a\\\\\\n\n", answers: []string{two}, asked: []string{`{"op":"exists","keys":["\\xff","a\\\\\\n"],"escaped":true}`},
			out: "hit      memory  /m/\\xff\nhit      memory  /m/a\\\\\\n\n", stderr: "2 blocks: 2 in memory\n"},
		{args: `-e /m/\q`, err: `"/m/\\q": not an escape of Go (write \\ for a backslash)`, code: exit.Runtime},
		{args: "/m/a /proc/b", err: "/proc/b is not in a kvfs mount", code: exit.NotMount},
		{args: "--mount /m/g a", err: "/m/g is not a kvfs mount: it is a directory in the mount /m", code: exit.NotMount},
	})
}

// TestLookupMany shows that a long list becomes several requests with one sum, whose
// prefix goes on as long as all are hits.
func TestLookupMany(t *testing.T) {
	type existsAnswer struct {
		States string `json:"states"`
		Hits   int    `json:"hits"`
		Misses int    `json:"misses"`
		Prefix int    `json:"prefix"`
	}
	const n = 2*client.RequestNames + 10
	var stdin strings.Builder
	for i := range n {
		fmt.Fprintf(&stdin, "%d\n", i)
	}
	asked := 0
	f := newFakeDaemon("/m", "query", func(request string) string {
		var q client.BlockRequest
		if err := json.Unmarshal([]byte(request), &q); err != nil {
			t.Error(err)
		}
		for i, hash := range q.Hashes {
			if hash != fmt.Sprint(asked+i) {
				t.Errorf("hash %d is %s", asked+i, hash)
				break
			}
		}
		states := []byte(strings.Repeat("m", len(q.Hashes)))
		a := existsAnswer{Hits: len(states), Prefix: len(states)}
		if asked > 0 { // from the second request on, the third block is a miss
			states[2] = '.'
			a = existsAnswer{Hits: len(states) - 1, Misses: 1, Prefix: 2}
		}
		a.States = string(states)
		asked += len(states)
		text, err := json.Marshal(a)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	})
	out, _, err := f.run(t, newLookupCommand, stdin.String(), "--mount", "/m", "--json", "-")
	var a existsAnswer
	if bad := json.Unmarshal([]byte(out), &a); bad != nil || exit.Code(err) != exit.Runtime {
		t.Fatalf("%v, %v", err, bad)
	}
	if len(a.States) != n || a.Hits != n-2 || a.Misses != 2 || a.Prefix != client.RequestNames+2 || len(f.asked()) != 3 {
		t.Errorf("%d requests, %d states, %d hits, %d misses, prefix %d", len(f.asked()), len(a.States), a.Hits, a.Misses, a.Prefix)
	}
}

// TestLongestHit shows what is asked and printed for the longest hit of a prompt.
func TestLongestHit(t *testing.T) {
	const answer = `{"op":"longest_hit","hit_tokens":4032,"capped":true,"pending":1,"late":0,"groups":[` +
		`{"name":"0","load":"111","fetch":[0,1,2]},{"name":"swa","load":"011","fetch":[2]}]}`
	const text = "hit: 4032 tokens (all of the prompt is cached; its last token is computed in any case)\n" +
		"counted as absent: 1 pending, 0 late\nGROUP  BLOCKS  TO READ\n0      3       3\nswa    3       1\n"
	file := writeTemp(t, "spec.json", "\n{\"hash_block_size\": 16}\n")
	checkCLI(t, newLookupCommand, "query", []cliCase{
		{args: "--mount /m --spec gemma a b c", answers: []string{answer + "\n"}, out: text,
			asked: []string{`{"op":"longest_hit","spec":"gemma","hashes":["a","b","c"],"fetch":true}`}},
		{args: "--mount /m --spec gemma --num-tokens 4096 --cached 16 --template t --no-lease --promote --json a", answers: []string{answer}, out: answer + "\n",
			asked: []string{`{"op":"longest_hit","spec":"gemma","hashes":["a"],"template":"t","num_tokens":4096,"cached":16,"fetch":true,"lease":false,"promote":true}`}},
		{args: "--mount /m --spec @" + file + " a", answers: []string{`{"hit_tokens":0,"groups":[]}`}, out: "hit: 0 tokens\nGROUP  BLOCKS  TO READ\n",
			asked: []string{`{"op":"longest_hit","spec":{"hash_block_size":16},"hashes":["a"],"fetch":true}`}},
		{args: "--mount /m --spec x a", answers: []string{`{"error":"there is no spec \"x\"","field":"/spec"}`},
			asked: []string{`{"op":"longest_hit","spec":"x","hashes":["a"],"fetch":true}`},
			err:   `look up in /m: there is no spec "x" (field /spec)`, code: exit.Runtime},
		{args: "--mount /m --spec @/absent a", err: "open /absent: no such file or directory", code: exit.Runtime},
		{args: "--mount /m --spec x a", answers: []string{"[]"}, asked: []string{`{"op":"longest_hit","spec":"x","hashes":["a"],"fetch":true}`},
			err: "answer of the daemon: json: cannot unmarshal array", code: exit.Runtime},
	})
}
