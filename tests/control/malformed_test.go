package control

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// malformed are requests that cannot be obeyed, one of each kind (package query has all), by control file, with the field that is
// to blame, "" for none, and words that the error must have.
var malformed = []struct {
	file, request, field string
	words                []string
}{
	{"query", ` `, "", nil},
	{"query", `[]`, "", nil},
	{"query", `{"op":"exists","keys":["a"]`, "", nil},
	{"query", `{"op":"exist","keys":["a"]}`, "/op", []string{"exist"}},
	{"query", `{"op":"exists","keys":["a"],"what":1}`, "/what", []string{"what"}},
	{"query", `{"op":"exists","keys":["a",17]}`, "/keys/1", nil},
	{"query", `{"op":"exists","keys":["a",""]}`, "/keys/1", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"template":"{hash"}`, "/template", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"ranks":99999999999999999999}`, "/ranks", nil},
	{"query", `{"op":"exists","keys":["a"],"request":"` + strings.Repeat("r", 129) + `"}`, "/request", []string{"128"}},
	{"query", `{"op":"longest_hit","spec":"none","hashes":["a"]}`, "/spec", []string{"none"}},
	{"query", `{"op":"longest_hit","spec":{"hash_block_size":16,"groups":[{"kind":"cross","block_size":16}]},"hashes":["a"]}`, "/spec", nil},
	{"query", `{"op":"load_mask","spec":` + fullSpec + `,"hit_tokens":17,"num_hashes":4}`, "/hit_tokens", nil},
	{"query", `{"op":"why"}`, "", nil},
	{"prefetch", `{"keys":[1]}`, "/keys/0", nil},
	{"prefetch", `nothing`, "", nil},
	{"specs", `{"get":["none"]}`, "/get/0", []string{"none"}},
	{"specs", `{"set":{"x":{"hash_block_size":16,"what":1}}}`, "/set/x/what", nil},
	{"evict", `{"tier":"memory","paths":[1]}`, "/paths/0", nil},
	{"evict", `{"tier":"memory","what":1}`, "/what", nil},
	{"evict", `{"tier":"none","paths":["a"]}`, "", []string{"none"}},
	{"events", `{"since":"now"}`, "/since", nil},
	{"events", `{"since":-1}`, "/since", nil},
	{"events", `{"groups":"g"}`, "/groups", nil},
	{"events", `{"events":["stored","nothing"]}`, "/events/1", []string{"nothing"}},
	{"events", `{"what":1}`, "/what", nil},
	{"events", `what`, "", nil},
}

// fullSpec is a spec of one group of full attention.
const fullSpec = `{"hash_block_size":16,"groups":[{"kind":"full","block_size":16}]}`

// goodRequests are what each dialogue obeys, with a piece of the answer.
var goodRequests = map[string][2]string{
	"query":    {`{"op":"exists","keys":["g/a","g/b"]}`, `"m."`},
	"prefetch": {`{"keys":["g/a","g/b"]}`, `"m."`},
	"specs":    {`{}`, `{"specs": {}}`},
	"evict":    {`{"tier":"memory","paths":["g/none"]}`, `"not found"`},
}

// TestMalformed shows that each faulty request is answered with an error that names
// the field to blame, that nothing hangs, and that the same descriptor obeys the next
// request (A5).
func TestMalformed(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	put(t, d.Path("g/a"), []byte("x"))
	all := map[string]*dialogue{}
	for file := range goodRequests {
		all[file] = talk(t, d, file)
	}
	for i, row := range malformed {
		t.Run(fmt.Sprintf("%d %s %s", i, row.file, cut(row.request)), func(t *testing.T) {
			good, ok := goodRequests[row.file]
			if !ok { // The stream takes one request.
				wantRefused(t, talk(t, d, row.file).raw(row.request), row.field, row.words...)
				return
			}
			c := &dialogue{t, all[row.file].fd}
			wantRefused(t, c.raw(row.request), row.field, row.words...)
			if got := c.raw(good[0]); !strings.Contains(string(got), good[1]) {
				t.Errorf("the next request: got %s, want %s in it", got, good[1])
			}
		})
	}
}

// TestKilledClient kills processes while they wait for an answer. The daemon cancels their requests and serves other
// processes.
func TestKilledClient(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{})
	keys := keysOf("g", hashes(40))
	coldBlocks(t, d, 256*kib, keys...)
	request, err := json.Marshal(obj{"keys": keys, "request": "req-killed"})
	must(t, "request", err)
	g.Hold()
	var killed []*askingProcess
	for range 3 {
		killed = append(killed, startAsker(t, d.Path(".kvfs/prefetch"), string(request)))
	}
	killed = append(killed, startAsker(t, d.Path(".kvfs/events"), `{"since":0}`))
	g.Await(t)
	for _, p := range killed {
		p.Kill()
	}
	c := talk(t, d, "query")
	put(t, d.Path("g/other"), []byte("x"))
	wantStates(t, c, "m", "g/other")
	g.Release()
	noneLeft(t, d)
	got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
	if strings.Trim(got.Results, "ml") != "" || len(got.Results) != len(keys) {
		t.Errorf("prefetch after it: %q", got.Results)
	}
}
