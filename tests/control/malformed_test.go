package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// malformed are requests that cannot be obeyed, by control file, with the field that is
// to blame, "" for none, and words that the error must have.
var malformed = []struct {
	file, request, field string
	words                []string
}{
	{"query", ` `, "", nil},
	{"query", `{`, "", nil},
	{"query", `}`, "", nil},
	{"query", `null`, "", nil},
	{"query", `true`, "", nil},
	{"query", `17`, "", nil},
	{"query", `"exists"`, "", nil},
	{"query", `[]`, "", nil},
	{"query", `[{"op":"exists","keys":["a"]}]`, "", nil},
	{"query", "\x00\x01\x02\xff", "", nil},
	{"query", `{"op":"exists","keys":["a"]`, "", nil},
	{"query", `{"op":"exists","keys":["a"`, "/keys", nil},
	{"query", `{"op":"exists","keys":["a`, "/keys/0", nil},
	{"query", `{"op":"exists","keys":["a",]}`, "/keys", nil},
	{"query", `{"op":"exists","keys":["a"]}}`, "", nil},
	{"query", `{"op":"exists","keys":["a"]} {"op":"exists","keys":["a"]}`, "", nil},
	{"query", `{"op":"exists" "keys":["a"]}`, "", nil},
	{"query", `{'op':'exists'}`, "", nil},
	{"query", `{}`, "/op", nil},
	{"query", `{"keys":["a"]}`, "/op", nil},
	{"query", `{"op":"exist","keys":["a"]}`, "/op", []string{"exist"}},
	{"query", `{"op":"","keys":["a"]}`, "/op", nil},
	{"query", `{"op":1,"keys":["a"]}`, "/op", nil},
	{"query", `{"op":null,"keys":["a"]}`, "/op", nil},
	{"query", `{"op":"exists","keys":["a"],"what":1}`, "/what", []string{"what"}},
	{"query", `{"op":"exists","keys":["a"],"a/b~c":1}`, "/a~1b~0c", nil},
	{"query", `{"op":"exists","keys":["a"],"Keys":["b"]}`, "/Keys", nil},
	{"query", `{"op":"exists","keys":["a"],"keys":["b"]}`, "/keys", nil},
	{"query", `{"op":"exists","keys":"a"}`, "/keys", nil},
	{"query", `{"op":"exists","keys":{"a":1}}`, "/keys", nil},
	{"query", `{"op":"exists","keys":["a",17]}`, "/keys/1", nil},
	{"query", `{"op":"exists","keys":["a","b",null]}`, "/keys/2", nil},
	{"query", `{"op":"exists","keys":["a",["b"]]}`, "/keys/1", nil},
	{"query", `{"op":"exists","keys":["a",{}]}`, "/keys/1", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a",17]}`, "/hashes/1", []string{"string"}},
	{"query", `{"op":"exists","group":"g","hashes":["a",true]}`, "/hashes/1", nil},
	{"query", `{"op":"exists","group":1,"hashes":["a"]}`, "/group", nil},
	{"query", `{"op":"exists"}`, "", nil},
	{"query", `{"op":"exists","keys":["a"],"group":"g","hashes":["a"]}`, "/hashes", nil},
	{"query", `{"op":"exists","keys":["a",""]}`, "/keys/1", nil},
	{"query", `{"op":"exists","hashes":["a"],"template":"fixed"}`, "/template", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"template":1}`, "/template", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"template":"{hash"}`, "/template", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"template":"{what}/{hash}"}`, "/template", []string{"what"}},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"template":"{hash:x:3}"}`, "/template", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"template":"{hash:3:1}"}`, "/template", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"ranks":-1}`, "/ranks", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"ranks":1.5}`, "/ranks", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"ranks":"1"}`, "/ranks", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"ranks":99999999999999999999}`, "/ranks", nil},
	{"query", `{"op":"exists","group":"g","hashes":["a"],"ranks":1000000000}`, "/ranks", nil},
	{"query", `{"op":"exists","keys":["a"],"request":1}`, "/request", nil},
	{"query", `{"op":"exists","keys":["a"],"request":"` + strings.Repeat("r", 129) + `"}`, "/request", []string{"128"}},
	{"query", `{"op":"exists","keys":["a"],"lease":"yes"}`, "/lease", nil},
	{"query", `{"op":"exists","keys":["a"],"promote":1}`, "/promote", nil},
	{"query", `{"op":"exists","keys":["a"],"deadline_ms":"1"}`, "/deadline_ms", nil},
	{"query", `{"op":"exists","keys":["a"],"deadline_ms":-1}`, "/deadline_ms", nil},
	{"query", `{"op":"longest_hit","hashes":["a"]}`, "/spec", nil},
	{"query", `{"op":"longest_hit","spec":"none","hashes":["a"]}`, "/spec", []string{"none"}},
	{"query", `{"op":"longest_hit","spec":1,"hashes":["a"]}`, "/spec", nil},
	{"query", `{"op":"longest_hit","spec":{"hash_block_size":16,"groups":[{"kind":"cross","block_size":16}]},"hashes":["a"]}`, "/spec", nil},
	{"query", `{"op":"longest_hit","spec":{"hash_block_size":16,"what":1,"groups":[]},"hashes":["a"]}`, "/spec/what", nil},
	{"query", `{"op":"longest_hit","spec":{"hash_block_size":16,"groups":[{"kind":"full","block_size":"16"}]},"hashes":["a"]}`, "/spec/groups/0/block_size", nil},
	{"query", `{"op":"longest_hit","spec":` + fullSpec + `,"hashes":["a"],"num_tokens":-1}`, "/num_tokens", nil},
	{"query", `{"op":"longest_hit","spec":` + fullSpec + `,"hashes":["a"],"cached":-1}`, "/cached", nil},
	{"query", `{"op":"longest_hit","spec":` + fullSpec + `,"hashes":["a"],"fetch":1}`, "/fetch", nil},
	{"query", `{"op":"longest_hit","spec":` + fullSpec + `,"keys":["a"]}`, "/keys", nil},
	{"query", `{"op":"load_mask","spec":` + fullSpec + `,"hit_tokens":17,"num_hashes":4}`, "/hit_tokens", nil},
	{"query", `{"op":"load_mask","spec":` + fullSpec + `,"hit_tokens":-16,"num_hashes":4}`, "/hit_tokens", nil},
	{"query", `{"op":"store_mask","spec":` + fullSpec + `,"num_tokens":17}`, "/num_tokens", nil},
	{"query", `{"op":"why"}`, "", nil},
	{"query", `{"op":"why","keys":[1]}`, "/keys/0", nil},
	{"query", `{"op":"exists","keys":["a","\ud800"]}`, "/keys/1", nil},
	{"query", `{"op":"exists","keys":["a","\x"]}`, "/keys/1", nil},
	{"query", "{\"op\":\"exists\",\"keys\":[\"a\",\"\xff\"]}", "/keys/1", nil},
	{"query", "{\"op\":\"exists\",\"keys\":[\"a\",\"b\nc\"]}", "/keys/1", nil},
	{"prefetch", `{"keys":[1]}`, "/keys/0", nil},
	{"prefetch", `{"keys":["a"],"progress":"yes"}`, "/progress", nil},
	{"prefetch", `{"keys":["a"],"what":"yes"}`, "/what", nil},
	{"prefetch", `{"group":"g","hashes":["a"],"template":"{"}`, "/template", nil},
	{"prefetch", `{"keys":["a"],"request":"` + strings.Repeat("r", 129) + `"}`, "/request", nil},
	{"prefetch", `nothing`, "", nil},
	{"specs", `{"get":"gemma"}`, "/get", nil},
	{"specs", `{"get":["none"]}`, "/get/0", []string{"none"}},
	{"specs", `{"remove":["none"]}`, "/remove/0", []string{"none"}},
	{"specs", `{"set":[]}`, "/set", nil},
	{"specs", `{"set":{"x":1}}`, "/set/x", nil},
	{"specs", `{"set":{"x":{"hash_block_size":16,"what":1}}}`, "/set/x/what", nil},
	{"specs", `{"put":{}}`, "/put", nil},
	{"specs", `{"get":["a"],"remove":["a"]}`, "/remove", nil},
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

// TestMalformedDeep shows that requests of many kinds of size are refused without harm:
// deep nesting, long names, numbers of many digits, and one byte more than 16 MiB.
func TestMalformedDeep(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	put(t, d.Path("g/a"), []byte("x"))
	c := talk(t, d, "query")
	const limit = 16 * mib
	good := `{"op":"exists","keys":["g/a"]}`
	for name, request := range map[string]string{
		"arrays in arrays":          `{"op":"exists","keys":` + strings.Repeat("[", mib) + `}`,
		"objects in objects":        strings.Repeat(`{"op":`, mib),
		"a field of 8 MiB":          `{"` + strings.Repeat("x", 8*mib) + `":1}`,
		"a number of 8 MiB":         `{"op":"exists","keys":["a"],"ranks":` + strings.Repeat("9", 8*mib) + `}`,
		"16 MiB of nothing":         strings.Repeat(" ", limit),
		"16 MiB and a byte":         good + strings.Repeat(" ", limit-len(good)+1),
		"64 MiB":                    strings.Repeat("x", 4*limit),
		"16 MiB and a byte, binary": string(append([]byte("KVQ1"), make([]byte, limit-3)...)),
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			answer := c.raw(request)
			if !strings.Contains(string(answer), `"error"`) && !strings.HasPrefix(string(answer), "KVE1") {
				t.Errorf("got %q, want an error", cut(string(answer)))
			}
			if len(answer) > 64*kib {
				t.Errorf("an error of %d bytes", len(answer))
			}
			wantStates(t, c, "m.", "g/a", "g/b")
		})
	}
	c.t = t
	var a existsAnswer
	decode(t, string(c.raw(good+strings.Repeat(" ", limit-len(good)))), &a)
	if a.States != "m" {
		t.Errorf("a request of 16 MiB: got %+v, want it obeyed", a)
	}
}

// TestPieces shows that a request may be written in pieces of any size, that the answer
// may be read in such, that a read without a request says so, and that the next request
// may be written before all of the answer was read.
func TestPieces(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	rnd := newRand(t)
	put(t, d.Path("g/a"), []byte("x"))
	request, err := json.Marshal(obj{"op": "exists", "keys": slices.Repeat([]string{"g/a", "g/none"}, 3000)})
	must(t, "request", err)
	want := strings.Repeat("m.", 3000)
	c := talk(t, d, "query")
	wantRefused(t, c.receive(), "")
	for range 5 {
		for rest := request; len(rest) > 0; {
			n := min(1+rnd.IntN(9000), len(rest))
			if rnd.IntN(4) == 0 {
				n = 1
			}
			c.send(rest[:n])
			rest = rest[n:]
		}
		var answer []byte
		for {
			buf := make([]byte, 1+rnd.IntN(5000))
			n, err := readSome(c.fd, buf)
			must(t, "read", err)
			if answer = append(answer, buf[:n]...); n == 0 {
				break
			}
		}
		var a existsAnswer
		decode(t, string(answer), &a)
		if a.States != want {
			t.Errorf("got %d states, want %d", len(a.States), len(want))
		}
		if n, err := readSome(c.fd, make([]byte, 10)); n != 0 || err != nil {
			t.Errorf("after the end: %d bytes, %v", n, err)
		}
	}
	c.send(request)
	if n, err := readSome(c.fd, make([]byte, 100)); n == 0 || err != nil {
		t.Errorf("beginning of an answer: %d bytes, %v", n, err)
	}
	wantStates(t, c, ".m", "g/none", "g/a")
}

// TestClosedEarly closes descriptors at every point of a dialogue. Later ones work.
func TestClosedEarly(t *testing.T) {
	d := diskMount(t, harness.Options{})
	coldBlocks(t, d, 8*kib, keysOf("g", hashes(10))...)
	for _, file := range []string{"query", "prefetch", "specs", "evict", "events"} {
		for _, part := range []string{``, `{"op":"exis`, `{"op":"exists","keys":["g/a"]}`, `KVQ1`} {
			for _, read := range []int{0, 1, 7} {
				if file == "events" && read > 0 {
					continue // It waits.
				}
				fd, err := openFile(d.Path(".kvfs", file), unix.O_RDWR)
				must(t, "open", err)
				must(t, "write", sendAll(fd, []byte(part)))
				if read > 0 {
					_, err := readSome(fd, make([]byte, read))
					must(t, "read", err)
				}
				must(t, "close", unix.Close(fd))
			}
		}
	}
	c := talk(t, d, "query")
	if got := c.exists(obj{"hashes": hashes(10), "group": "g"}).States; got != "dddddddddd" {
		t.Errorf("got %q", got)
	}
}

// TestConcurrent asks on 64 descriptors at once, in JSON and in binary; each gets the
// answers to its own requests.
func TestConcurrent(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	const n = 64
	for i := range n {
		put(t, d.Path("g", hash(i)), []byte("x"))
	}
	parallel(n, func(i int) {
		fd, err := openFile(d.Path(".kvfs/query"), unix.O_RDWR)
		if err != nil {
			t.Errorf("open: %v", err)
			return
		}
		defer unix.Close(fd)
		for round := range 20 {
			// Descriptor i asks for i hashes that are there and as many that are not.
			set := hashes(i)
			for j := range i {
				set = append(set, hash(1000+j))
			}
			want := strings.Repeat("m", i) + strings.Repeat(".", i)
			request := binaryRequest{group: "g", hashes: set}.bytes()
			if round%2 == 0 {
				request, _ = json.Marshal(obj{"op": "exists", "group": "g", "hashes": set})
			}
			err := sendAll(fd, request)
			if err != nil {
				t.Errorf("write: %v", err)
				return
			}
			answer, err := readAnswer(fd)
			if err != nil || !strings.Contains(string(answer), want) || strings.Contains(string(answer), want+".") {
				t.Errorf("descriptor %d: got %q, %v, want %q", i, answer, err, want)
				return
			}
		}
	})
}

// TestKilledClient kills processes while they wait for an answer. The daemon cancels their requests and serves other
// processes.
func TestKilledClient(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	keys := keysOf("g", hashes(40))
	coldBlocks(t, d, 256*kib, keys...)
	request, err := json.Marshal(obj{"keys": keys, "request": "req-killed"})
	must(t, "request", err)
	g.hold()
	var killed []*askingProcess
	for range 3 {
		killed = append(killed, startAsker(t, d.Path(".kvfs/prefetch"), string(request)))
	}
	killed = append(killed, startAsker(t, d.Path(".kvfs/events"), `{"since":0}`))
	g.await(t)
	for _, p := range killed {
		p.Kill()
	}
	c := talk(t, d, "query")
	put(t, d.Path("g/other"), []byte("x"))
	wantStates(t, c, "m", "g/other")
	g.release()
	noneLeft(t, d)
	got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
	if strings.Trim(got.Results, "ml") != "" || len(got.Results) != len(keys) {
		t.Errorf("prefetch after it: %q", got.Results)
	}
}

// TestInterrupted sends a signal to a process that waits for an answer: its read fails
// with EINTR at once, and the next one gets the answer.
func TestInterrupted(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	coldBlocks(t, d, 256*kib, "g/a")
	g.hold()
	p := startAsker(t, d.Path(".kvfs/prefetch"), `{"keys":["g/a"]}`)
	g.await(t)
	interrupted := make(chan struct{})
	go func() { // Ends with the first interruption, or with the process.
		defer close(interrupted)
		line := <-p.lines
		if line != "interrupted" {
			t.Errorf("the asker says %q", line)
		}
	}()
	harness.Poll(t, "the read is interrupted", func() bool {
		// Signals that come before the thread is in its read do nothing.
		unix.Tgkill(p.Pid, p.thread, unix.SIGUSR1)
		select {
		case <-interrupted:
			return true
		default:
			return false
		}
	})
	g.release()
	for {
		line := receive(t, "the answer", p.lines)
		if line == "interrupted" {
			continue // Signals that were on their way.
		}
		var a prefetchAnswer
		decode(t, line, &a)
		if a.Results != "l" {
			t.Errorf("got %+v, want the block to be loaded", a)
		}
		break
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
