package query

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/names"
)

// fuzzService has a few blocks and all specs of the tests.
func fuzzService(t testing.TB) *Service {
	t.Helper()
	s, err := New(Options{Engine: &fakeEngine{blocks: map[string]names.Place{
		"g/a": inMemory, "0/a": onDisk, "1/a": atPeer, "0/61": inMemory, "a": pending, "b": late,
	}}, Tiers: []string{"memory", "disk", "peer"}, Specs: specsForTests})
	must(t, err)
	return s
}

// FuzzQuery shows that no request makes a handler panic or answer anything but JSON, and that each
// is answered.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		`{"op": "exists", "group": "g", "hashes": ["a", "\u0062"], "request": "r", "promote": true, "deadline_ms": 5}`,
		`{"op": "exists", "keys": ["a", "b", "g/a"], "lease": false}`,
		`{"op": "exists", "template": "{group}_{rank}/{hash:0:1}/{hash}", "ranks": 3, "group": "g", "hashes": ["a/b", "..", ""]}`,
		`{"op": "longest_hit", "spec": "gemma", "hashes": ["a", "b", "a"], "fetch": true, "cached": 16, "num_tokens": 40, "promote": true}`,
		`{"op": "longest_hit", "hashes": ["a"], "spec": {"hash_block_size": 8, "eagle": true, "groups": [{"kind": "mamba", "block_size": 16, "mode": "align"}, {"kind": "full", "block_size": 16, "ranks": 2}]}}`,
		`{"op": "longest_hit", "hashes": ["a"], "spec": {"hash_block_size": 8, "groups": [{"kind": "chunk", "chunk": 16, "block_size": 8}, {"kind": "swa", "window": 9, "block_size": 8}]}}`,
		`{"op": "load_mask", "spec": "eagle", "hit_tokens": 64, "cached": 16, "num_hashes": 9}`,
		`{"op": "store_mask", "spec": "wide", "num_tokens": 128, "start": 64, "prompt_tokens": 100}`,
		`{"op": "why", "keys": ["a"]}`,
		`{"set": {"a": {"hash_block_size": 16, "retention_interval": 0, "groups": []}}}`,
		`{"get": ["gemma"]}`, `{"remove": ["gemma", "\ud83d\ude00"]}`, `{"op": "exists", "keys": ["\ud800"]}`,
		`{"keys": ["a", "a"], "progress": true}`, `{`, `{"op"`, `[[[[`, "{\"\xff\": 1}", `{"op": "exists", "keys": [], "keys": []}`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		if bytes.HasPrefix(request, []byte(binaryPrefix)) {
			return // see FuzzBinary
		}
		s := fuzzService(t)
		kept := bytes.Clone(request)
		for _, do := range []func(out *bytes.Buffer){
			func(out *bytes.Buffer) { s.Query(t.Context(), nil, request, out) },
			func(out *bytes.Buffer) { s.Prefetch(t.Context(), nil, request, out) },
			func(out *bytes.Buffer) { s.SpecsFile(t.Context(), request, out) },
		} {
			var out bytes.Buffer
			do(&out)
			if !json.Valid(out.Bytes()) || !utf8.Valid(out.Bytes()) || bytes.IndexByte(out.Bytes(), '\n') != out.Len()-1 {
				t.Errorf("%q: answer %q", request, out.Bytes())
			}
		}
		if !bytes.Equal(request, kept) {
			t.Error("the request was changed")
		}
		if got := ask(t, s, `{"op": "exists", "keys": ["g/a"]}`); got != `{"op": "exists", "states": "m", "hits": 1, "pending": 0, "late": 0, "misses": 0, "prefix": 1}` {
			t.Errorf("then: %s", got)
		}
	})
}

// FuzzBinary shows the same of requests in binary.
func FuzzBinary(f *testing.F) {
	for _, seed := range []binaryForm{
		{op: 1, size: 1, count: 2, subject: "g", hashes: []byte("ab")},
		{op: 1, flags: 7, size: 1, count: 2, subject: "g", request: "r", deadline: 5, hashes: []byte("a.")},
		{op: 1, size: 2, count: 1, template: "{hash:0:1}/{hash}_{rank}", ranks: 3, hashes: []byte("ab")},
		{op: 2, size: 1, count: 3, subject: "gemma", tokens: 40, hashes: []byte("aba")},
		{op: 2, size: 1, count: 8, subject: "mamba", hashes: []byte("aaaaaaaa")},
		{op: 2, flags: binaryText | binaryPromote, size: 1, count: 1, subject: "eagle", template: "{group}/{hash}", hashes: []byte("a")},
	} {
		f.Add(seed.encode())
	}
	f.Add([]byte("KVQ1"))
	f.Fuzz(func(t *testing.T, request []byte) {
		if !bytes.HasPrefix(request, []byte(binaryPrefix)) {
			return
		}
		s := fuzzService(t)
		var out bytes.Buffer
		s.Query(t.Context(), nil, request, &out)
		op := byte(binaryExists)
		if len(request) > 4 {
			op = request[4]
		}
		decodeBinary(t, op, out.Bytes())
	})
}
