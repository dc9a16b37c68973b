package main

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// binaryAnswer makes an answer as the daemon does.
func binaryAnswer(numbers [5]uint32, rest string) []byte {
	out := []byte("KVA1")
	for _, n := range numbers {
		out = binary.LittleEndian.AppendUint32(out, n)
	}
	return append(out, rest...)
}

// A wrong answer is an error, so no figure comes from wrong answers.
func TestCheckAnswers(t *testing.T) {
	exists := func(answer []byte) {
		if bytes.HasPrefix(answer, []byte("{")) {
			checkExistsJSON(answer, 4, 2)
		} else {
			checkExistsBinary(answer, 4, 2)
		}
	}
	hit := func(answer []byte) {
		if bytes.HasPrefix(answer, []byte("{")) {
			checkHitJSON(answer, 48, []int{3, 1})
		} else {
			checkHitBinary(answer, 48, []int{3, 1})
		}
	}
	prefetch := func(answer []byte) { checkPrefetch(answer, 3) }
	loads := "\x03\x00\x00\x00111\x03\x00\x00\x00001"
	for _, c := range []struct {
		name   string
		check  func([]byte)
		answer []byte
		good   bool
	}{
		{"exists", exists, []byte(`{"op": "exists", "states": "m.m.", "hits": 2}`), true},
		{"exists, other hits", exists, []byte(`{"op": "exists", "states": "mmm.", "hits": 3}`), false},
		{"exists, states cut", exists, []byte(`{"op": "exists", "states": "m.m", "hits": 2}`), false},
		{"exists, refused", exists, []byte(`{"error": "no", "field": "/op"}`), false},
		{"exists, binary", exists, binaryAnswer([5]uint32{2, 0, 0, 1, 4}, "m.m."), true},
		{"exists, binary, other hits", exists, binaryAnswer([5]uint32{1, 0, 0, 1, 4}, "m..."), false},
		{"exists, binary, states cut", exists, binaryAnswer([5]uint32{2, 0, 0, 1, 4}, "m.m"), false},
		{"exists, binary, refused", exists, []byte("KVE1\x02\x00\x00\x00no"), false},
		{"exists, nothing", exists, nil, false},
		{"hit", hit, []byte(`{"hit_tokens": 48, "groups": [{"load": "111"}, {"load": "001"}]}`), true},
		{"hit, shorter", hit, []byte(`{"hit_tokens": 32, "groups": [{"load": "111"}, {"load": "001"}]}`), false},
		{"hit, other mask", hit, []byte(`{"hit_tokens": 48, "groups": [{"load": "111"}, {"load": "011"}]}`), false},
		{"hit, a group less", hit, []byte(`{"hit_tokens": 48, "groups": [{"load": "111"}]}`), false},
		{"hit, refused", hit, []byte(`{"error": "no"}`), false},
		{"hit, binary", hit, binaryAnswer([5]uint32{48, 0, 0, 0, 2}, loads), true},
		{"hit, binary, cut", hit, binaryAnswer([5]uint32{48, 0, 0, 0, 2}, loads[:len(loads)-1]), false},
		{"hit, binary, other", hit, binaryAnswer([5]uint32{32, 0, 0, 0, 2}, loads), false},
		{"prefetch", prefetch, []byte("{\"done\": 1}\n{\"results\": \"lll\", \"loaded\": 3}\n"), true},
		{"prefetch, hot", prefetch, []byte(`{"results": "mml", "loaded": 1}`), false},
		{"prefetch, absent", prefetch, []byte(`{"results": "ll.", "loaded": 2}`), false},
		{"prefetch, failed", prefetch, []byte(`{"results": "ll!", "loaded": 2, "errors": [{"path": "p", "error": "e"}]}`), false},
		{"prefetch, refused", prefetch, []byte(`{"error": "no"}`), false},
	} {
		if err := try(func() { c.check(c.answer) }); (err == nil) != c.good {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}
