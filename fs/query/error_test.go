package query

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// failure is the answer to a request that cannot be obeyed.
type failure struct{ Error, Field string }

// TestQueryErrors shows for each thing that may be wrong what is told, and where it points; and that
// the next request is answered (A5).
func TestQueryErrors(t *testing.T) {
	s, _ := newService(t, nil)
	for _, c := range []struct{ request, field, want string }{
		// What is no JSON.
		{``, "", "the request is empty"},
		{`{"op": "exists"`, "", "the request ends too early, after 15 bytes"},
		{`{"op": "exists", "keys": ["a", "b`, "/keys/1", "keys[1]: the request ends too early, after 33 bytes"},
		{`{"op": "exists"} {}`, "", "there is more than one value; ask again after the answer"},
		{`{"op": "exists"} x`, "", "invalid character 'x' at start of value, at byte 17"},
		{`{"op": "exists", "keys": ["a" "b"]}`, "/keys", "keys: invalid character '\"' after array element (expecting ',' or ']'), at byte 30"},
		{`{"op": "exists", "keys": ["a",]}`, "/keys", "keys: invalid character ',' at start of value, at byte 29"},
		{"{\"op\": \"exists\", \"keys\": [\"\xff\"]}", "/keys/0", "keys[0]: invalid UTF-8, at byte 27"},
		{`{"op": "exists", "keys": ["\ud800"]}`, "/keys/0", "keys[0]: invalid surrogate pair `\\ud800\"]}` in string, at byte 27"},
		{`{"op": "exists", "op": "why"}`, "/op", "op: is there twice"},
		// What is no request.
		{`[]`, "", "got list, want object"},
		{`{}`, "/op", "op: is missing: want exists, longest_hit, load_mask, store_mask, release or why"},
		{`{"op": 1}`, "/op", "op: got number, want string"},
		{`{"op": "exist"}`, "/op", `op: "exist" is none of exists, longest_hit, load_mask, store_mask, release, why`},
		{`{"op": "release"}`, "/request", "request: is missing"},
		{`{"op": "release", "request": ""}`, "/request", "request: may not be empty"},
		{`{"op": "release", "request": "r", "keys": []}`, "/keys", "keys: is no member of release"},
		{`{"op": "exists", "hash": 1}`, "/hash", "hash: there is no such member"},
		{`{"op": "exists", "a/b~": 1}`, "/a~1b~0", "a/b~: there is no such member"},
		{`{"op": "exists", "keys": [], "progress": true}`, "/progress", "progress: there is no such member"},
		{`{"keys": ["a"], "spec": "gemma", "op": "exists"}`, "/spec", "spec: is no member of exists"},
		{`{"lease": true, "op": "why", "keys": []}`, "/lease", "lease: is no member of why"},
		{`{"op": "longest_hit", "spec": "gemma", "keys": ["a"]}`, "/keys", "keys: is no member of longest_hit"},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "group": "0"}`, "/group", "group: is no member of longest_hit"},
		// Wrong types and ranges.
		{`{"op": "exists", "hashes": ["a", 17]}`, "/hashes/1", "hashes[1]: got number, want string"},
		{`{"op": "exists", "hashes": "a"}`, "/hashes", "hashes: got string, want list"},
		{`{"op": "exists", "keys": [], "lease": "yes"}`, "/lease", "lease: got string, want bool"},
		{`{"op": "exists", "hashes": [], "ranks": 0}`, "/ranks", "ranks: 0 is not from 1 to 1024"},
		{`{"op": "exists", "hashes": [], "ranks": 1.5}`, "/ranks", "ranks: 1.5 is not a whole number"},
		{`{"op": "exists", "hashes": [], "deadline_ms": -1}`, "/deadline_ms", "deadline_ms: -1 is not from 0 to 2147483647"},
		{`{"op": "exists", "hashes": [], "deadline_ms": 99999999999999999999}`, "/deadline_ms", "deadline_ms: 99999999999999999999 is not from 0 to 2147483647"},
		{`{"op": "exists", "hashes": [], "request": "` + strings.Repeat("r", 129) + `"}`, "/request", "request: has 129 bytes, 128 is the limit"},
		// Names.
		{`{"op": "exists"}`, "", "neither keys nor hashes are there"},
		{`{"op": "exists", "keys": [], "hashes": []}`, "/hashes", "hashes: keys and hashes exclude each other"},
		{`{"op": "exists", "hashes": [], "keys": ["a"]}`, "/keys", "keys: keys and hashes exclude each other"},
		{`{"op": "exists", "keys": ["a"], "group": "g"}`, "/group", "group: is of no use with keys, which are whole paths"},
		{`{"op": "exists", "template": "{hash}", "keys": ["a"]}`, "/template", "template: is of no use with keys, which are whole paths"},
		{`{"op": "exists", "keys": ["a"], "ranks": 2}`, "/ranks", "ranks: is of no use with keys, which are whole paths"},
		{`{"op": "exists", "keys": ["a", ""]}`, "/keys/1", `keys[1]: "": a path may not be empty`},
		{`{"op": "exists", "keys": ["a", "/b"]}`, "/keys/1", `keys[1]: "/b": a path below the mount does not begin with a slash`},
		{`{"op": "exists", "keys": ["a/"]}`, "/keys/0", `keys[0]: "a/": a path may not have an empty component, nor end in a slash`},
		{`{"op": "exists", "keys": ["a/../b"]}`, "/keys/0", `keys[0]: "a/../b": a path may not have "." or ".." in it`},
		{`{"op": "exists", "keys": ["a\u0000"]}`, "/keys/0", `keys[0]: "a\x00": a path may not have a NUL byte`},
		{`{"op": "exists", "keys": ["` + strings.Repeat("x", 99) + `/"]}`, "/keys/0", `keys[0]: "` + strings.Repeat("x", 64) + `"...: a path may not have an empty component, nor end in a slash`},
		{`{"op": "exists", "hashes": ["a", ""]}`, "/hashes/1", `hashes[1]: "": a hash may not be empty`},
		{`{"op": "exists", "hashes": ["a", "x/../y"], "group": "g"}`, "/hashes/1", `hashes[1]: "x/../y": a path may not have "." or ".." in it`},
		{`{"op": "exists", "hashes": ["a"], "group": ".."}`, "/group", `group: "..": a path may not have "." or ".." in it`},
		{`{"op": "exists", "hashes": ["a"], "template": "x_{group}/{hash}"}`, "/group", "group: is missing, and the template has {group}"},
		{`{"op": "exists", "hashes": ["a"], "template": "{group}/{hash"}`, "/template", "template: the { at byte 8 is not closed"},
		{`{"op": "exists", "hashes": ["a"], "template": "a{hsh}"}`, "/template", `template: "{hsh}" at byte 1 is none of {group}, {rank}, {hash}, {hash:from:to}`},
		{`{"op": "exists", "hashes": ["a"], "template": "a//{hash}"}`, "/template", "template: a path may not have an empty component, nor end in a slash"},
		{`{"op": "exists", "hashes": ["a"], "template": "{hash}/.."}`, "/template", `template: a path may not have "." or ".." in it`},
		// Specs.
		{`{"op": "longest_hit", "hashes": ["a"]}`, "/spec", "spec: is missing"},
		{`{"op": "longest_hit", "spec": "gemma"}`, "/hashes", "hashes: is missing"},
		{`{"op": "load_mask", "spec": "gemma"}`, "/hit_tokens", "hit_tokens: is missing"},
		{`{"op": "store_mask", "spec": "gemma"}`, "/num_tokens", "num_tokens: is missing"},
		{`{"op": "longest_hit", "spec": "gemini", "hashes": ["a"]}`, "/spec", `spec: there is none named "gemini"`},
		{`{"op": "longest_hit", "spec": 1, "hashes": ["a"]}`, "/spec", "spec: got number, want the name of a spec, or an object"},
		{`{"op": "longest_hit", "spec": {"hash_block_sise": 1}, "hashes": ["a"]}`, "/spec/hash_block_sise", "spec.hash_block_sise: there is no such member"},
		{`{"op": "longest_hit", "spec": {"hash_block_size": 1, "groups": [{"kind": 1}]}, "hashes": ["a"]}`, "/spec/groups/0/kind", "spec.groups[0].kind: got number, want string"},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "template": "{hash}"}`, "/template", "template: has no {group}, but the spec has 2 groups: they would share their blocks"},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a", "."]}`, "/hashes/1", `hashes[1]: ".": a path may not have "." or ".." in it`},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "num_tokens": 1.5}`, "/num_tokens", "num_tokens: 1.5 is not a whole number"},
		{`{"op": "longest_hit", "spec": "gemma", "hashes": ["a"], "cached": -1}`, "/cached", "cached: -1 is not from 0 to 1099511627776"},
		{`{"op": "load_mask", "spec": "gemma", "hit_tokens": 1099511627776}`, "/hit_tokens", "hit_tokens: 1099511627776 tokens have more than 4000000 blocks"},
		{`{"op": "store_mask", "spec": "gemma", "num_tokens": 1099511627776}`, "/num_tokens", "num_tokens: 1099511627776 tokens have more than 4000000 blocks"},
		{`{"op": "load_mask", "spec": "gemma", "hit_tokens": 64, "num_hashes": 3}`, "/num_hashes", "num_hashes: 3 hashes are too few for 64 tokens"},
	} {
		t.Run(c.request[:min(len(c.request), 80)], func(t *testing.T) {
			if got := decode[failure](t, ask(t, s, c.request)); got != (failure{c.want, c.field}) {
				t.Errorf("got %q %q, want %q %q", got.Field, got.Error, c.field, c.want)
			}
			if got := ask(t, s, `{"op": "exists", "keys": ["a"]}`); !strings.Contains(got, `"states": "."`) {
				t.Errorf("then: %s", got)
			}
		})
	}
}

// TestLongErrors shows where errors point whose text is that of another package, that no error repeats more
// than a little of a long request, and that what is cut remains valid (A5).
func TestLongErrors(t *testing.T) {
	s, _ := newService(t, nil)
	long, umlauts := strings.Repeat("x", 8<<20), strings.Repeat("\u00e4", 4<<20)
	many := make([]string, hybrid.MaxSpecs)
	for i := range many {
		many[i] = fmt.Sprintf(`"%s%d": {"groups": [{"kind": "none"}]}`, long[:1000], i)
	}
	query := func(request string) string { return ask(t, s, request) }
	change := func(request string) string { return specs(t, s, request) }
	load := func(request string) string {
		return answerOf(t, func(out *bytes.Buffer) { s.Prefetch(t.Context(), nil, []byte(request), out) })
	}
	for name, c := range map[string]struct {
		answer, field, want string // beginnings
	}{
		"member":     {query(`{"` + long + `": 1}`), "/" + long[:1023], long[:64] + "...: there is no such member"},
		"prefetch":   {load(`{"` + long + `": 1}`), "/" + long[:1023], long[:64] + "...: there is no such member"},
		"characters": {query(`{"` + umlauts + `": 1}`), "/" + umlauts[:1022], umlauts[:64] + "...: there is no such member"},
		"odd":        {query(`{"x` + umlauts + `": 1}`), "/x" + umlauts[:1022], "x" + umlauts[:62] + "...: there is no such member"},
		"escapes":    {query(`{"` + strings.Repeat("~", 1<<20) + `": 1}`), "/" + strings.Repeat("~0", 511), strings.Repeat("~", 64) + "...: there is"},
		"nested":     {query(strings.Repeat(`{"op":`, 1<<20)), "/op", "op"},
		"deep": {query(`{"op": "longest_hit", "hashes": [], "spec": {"` + long + `": 1}}`), "/spec/" + long[:1018],
			"spec." + long[:64] + "...: there is no such member"},
		"op":       {query(`{"op": "` + long + `"}`), "/op", `op: "` + long[:64] + `"... is none of`},
		"number":   {query(`{"op": "exists", "ranks": ` + strings.Repeat("9", 8<<20) + `}`), "/ranks", "ranks: " + strings.Repeat("9", 64) + "... is not"},
		"key":      {query(`{"op": "exists", "keys": ["/` + long + `"]}`), "/keys/0", `keys[0]: "/` + long[:63] + `"...: a path`},
		"template": {query(`{"op": "exists", "hashes": ["a"], "template": "` + long + `"}`), "/template", "template: has 8388608 bytes"},
		"spec":     {query(`{"op": "longest_hit", "hashes": ["a"], "spec": "` + long + `"}`), "/spec", `spec: there is none named "` + long[:64] + `"...`},
		"kind": {query(`{"op": "longest_hit", "hashes": ["a"], "spec": {"hash_block_size": 16, "groups": [{"block_size": 16, "kind": "` + long + `"}]}}`), "/spec",
			`spec: kvfs does not support: group 0: No manager registered for KVCacheSpec "` + long[:64] + `"`},
		"group names": {query(`{"op": "longest_hit", "hashes": ["a"], "spec": {"hash_block_size": 16, "groups": [{"kind": "full", "block_size": 16, "name": "` + long[:1<<20] +
			`"}, {"kind": "full", "block_size": 16, "name": "` + long[:1<<20] + `"}]}}`), "/spec",
			`spec: kvfs does not support: group 0: name "` + long[:64] + `" cannot stand in a path: want 1 to 255 bytes without empty components, ".", ".." and NUL; group 1: has the name "` + long[:64] + `" of group 0; group 1: name "x`},
		"load":  {query(`{"op": "load_mask", "spec": "gemma", "hit_tokens": 17}`), "/hit_tokens", "hit_tokens: hybrid: aligned_token_len (17) must be"},
		"store": {query(`{"op": "store_mask", "spec": "gemma", "num_tokens": 17}`), "/num_tokens", "num_tokens: hybrid: aligned_token_len (17) must be"},
		"empty": {query(`{"op": "longest_hit", "spec": {}, "hashes": []}`), "/spec", "spec: "},
		"get":   {change(`{"get": ["` + long + `"]}`), "/get/0", `get[0]: there is no spec named "` + long[:64] + `"...`},
		"set":   {change(`{"set": {"` + long + `": {}}}`), "/set/" + long[:1019], "set." + long[:64] + `...: "` + long[:64] + `" cannot name a spec`},
		"many":  {change(`{"set": {` + strings.Join(many, ", ") + `}}`), "/set/" + long[:1000] + "0", "set." + long[:64] + `...: "` + long[:64] + `" cannot name a spec`},
	} {
		got := decode[failure](t, c.answer)
		if !strings.HasPrefix(got.Error, c.want) || !strings.HasPrefix(got.Field, c.field) {
			t.Errorf("%s: got %.300q at %.100q, want %.300q at %.100q", name, got.Error, got.Field, c.want, c.field)
		}
		if len(got.Error) > strict.MaxText || len(got.Field) > strict.MaxPointer || !utf8.ValidString(got.Field) || strings.HasSuffix(got.Field, "\ufffd") {
			t.Errorf("%s: an error of %d bytes with a field of %d, which ends in %q", name, len(got.Error), len(got.Field), got.Field[max(0, len(got.Field)-4):])
		}
	}
}

// TestTooMany shows the limits on names.
func TestTooMany(t *testing.T) {
	s, e := newService(t, nil)
	many := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(`"a",`, n), ",") + "]"
	}
	for _, c := range []struct{ request, field, want string }{
		{`{"op": "exists", "hashes": ` + many(maxNames+1) + `}`, "/hashes", "hashes: has more than 1000000 elements"},
		{`{"op": "exists", "template": "{hash}{rank}", "ranks": 1001, "hashes": ` + many(1000) + `}`, "/ranks", "ranks: 1000 blocks of 1001 ranks are more than 1000000 files"},
		{`{"op": "longest_hit", "spec": "gemma", "template": "{group}{hash}{rank}", "ranks": 1000, "hashes": ` + many(10_000) + `}`,
			"/hashes", "hashes: 10000 hashes of all groups and ranks are more than 16777216 files"},
	} {
		if got := decode[failure](t, ask(t, s, c.request)); got != (failure{c.want, c.field}) {
			t.Errorf("got %q %q, want %q %q", got.Field, got.Error, c.field, c.want)
		}
	}
	if e.mu.calls > 0 {
		t.Errorf("the engine was asked")
	}
	if got := ask(t, s, `{"op": "exists", "hashes": `+many(maxNames)+`}`); !strings.Contains(got, `"misses": 1000000`) {
		t.Errorf("got %s", got[len(got)-100:])
	}
}

// TestReaderGone shows that a handler returns when nobody reads.
func TestReaderGone(t *testing.T) {
	s, _ := newService(t, nil)
	w := &gone{left: 3}
	s.Query(t.Context(), nil, []byte(`{"op": "why", "keys": `+list(hashList(10_000))+`}`), w)
	if w.left != -1 {
		t.Errorf("%d writes left", w.left)
	}
	var out bytes.Buffer
	s.Query(t.Context(), nil, []byte(`{"op": "why", "keys": `+list(hashList(2000))+`}`), &out)
	if n := strings.Count(out.String(), `{"path": "`); n != 2000 {
		t.Errorf("then %d verdicts", n)
	}
}

// gone is a reader who goes after some writes.
type gone struct{ left int }

func (g *gone) Write(b []byte) (int, error) {
	if g.left--; g.left < 0 {
		return 0, bytes.ErrTooLarge
	}
	return len(b), nil
}
