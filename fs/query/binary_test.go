package query

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/names"
)

// binaryForm is a request in binary.
type binaryForm struct {
	op, flags                  byte
	size, count                int
	deadline                   uint32
	subject, template, request string
	ranks                      int
	tokens                     int
	hashes                     []byte
}

func (f binaryForm) encode() []byte {
	le := binary.LittleEndian
	b := append([]byte("KVQ1"), f.op, f.flags)
	b = le.AppendUint16(b, uint16(f.size))
	b = le.AppendUint32(b, uint32(f.count))
	b = le.AppendUint32(b, f.deadline)
	for _, n := range []int{len(f.subject), len(f.template), len(f.request), f.ranks} {
		b = le.AppendUint16(b, uint16(n))
	}
	b = le.AppendUint32(b, uint32(f.tokens))
	b = le.AppendUint32(b, 0)
	b = append(append(append(b, f.subject...), f.template...), f.request...)
	return append(b, f.hashes...)
}

// binaryReply is an answer in binary.
type binaryReply struct {
	hits, pending, late, prefix, n int
	states                         string
	loads                          []string
	err                            string
}

// decodeBinary decodes an answer and checks that it has the length that it says.
func decodeBinary(t testing.TB, op byte, b []byte) (r binaryReply) {
	t.Helper()
	number := func() int {
		if len(b) < 4 {
			t.Fatal("the answer ends too early")
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return int(n)
	}
	text := func(n int) string {
		if len(b) < n {
			t.Fatal("the answer ends too early")
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	switch magic := text(4); magic {
	case "KVE1":
		r.err = text(number())
	case "KVA1":
		r.hits, r.pending, r.late, r.prefix, r.n = number(), number(), number(), number(), number()
		if op == binaryExists {
			r.states = text(r.n)
		} else {
			for range r.n {
				r.loads = append(r.loads, text(number()))
			}
		}
	default:
		t.Fatalf("begins with %q", magic)
	}
	if len(b) > 0 {
		t.Fatalf("%d bytes too many", len(b))
	}
	return r
}

func askBinary(t testing.TB, s *Service, f binaryForm) binaryReply {
	t.Helper()
	var out bytes.Buffer
	s.Query(t.Context(), nil, f.encode(), &out)
	return decodeBinary(t, f.op, out.Bytes())
}

// TestBinary shows requests in binary and how their options reach the engine.
func TestBinary(t *testing.T) {
	s, e := newService(t, map[string]names.Place{
		"g0/00ff": inMemory, "g0/0a0b": onDisk, "g0/ab": inMemory, "g0/cd": late, "r0/00_g0": atPeer, "r1/00_g0": pending,
		"0/00ff": inMemory, "1/00ff": inMemory, "0/0a0b": inMemory, "1/0a0b": onDisk,
	})
	two := []byte{0x00, 0xff, 0x0a, 0x0b}
	for _, c := range []struct {
		form binaryForm
		want string
	}{
		{binaryForm{op: 1, size: 2, count: 2, subject: "g0", hashes: two}, "2 0 0 2 md []"},
		{binaryForm{op: 1, size: 2, count: 2, flags: binaryText, subject: "g0", hashes: []byte("abcd")}, "1 0 1 1 ml []"},
		{binaryForm{op: 1, size: 2, count: 2, subject: "g0", template: "r{rank}/{hash:0:2}_{group}", ranks: 2, hashes: two}, "0 1 0 0 w. []"},
		{binaryForm{op: 1, subject: "g0"}, "0 0 0 0  []"},
		{binaryForm{op: 1}, "0 0 0 0  []"},
		{binaryForm{op: 2, size: 2, count: 2, subject: "gemma", hashes: two}, "16 0 0 1  [1 1]"},
		{binaryForm{op: 2, size: 2, count: 2, subject: "gemma", hashes: two, tokens: 64}, "32 0 0 0  [11 11]"},
		{binaryForm{op: 2, size: 2, count: 2, subject: "gemma", hashes: two, tokens: 20}, "16 0 0 0  [1 1]"},
		{binaryForm{op: 2, subject: "gemma"}, "0 0 0 0  [ ]"},
	} {
		r := askBinary(t, s, c.form)
		if got := fmt.Sprint(r.hits, r.pending, r.late, r.prefix, " ", r.states, " ", r.loads); r.err != "" || strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(c.want), " ") {
			t.Errorf("%+v: got %q %s, want %q", c.form, got, r.err, c.want)
		}
	}
	askBinary(t, s, binaryForm{op: 1, flags: binaryNoLease | binaryPromote, size: 2, count: 2, subject: "g0", hashes: two, deadline: 5, request: "r9"})
	if got := fmt.Sprintf("%v %q %s", e.mu.options, e.mu.hinted, e.mu.request); got != `{false 5ms <nil> r9 {0 0}} ["g0/0a0b"] r9` {
		t.Errorf("got %s", got)
	}
	askBinary(t, s, binaryForm{op: 1, size: 2, count: 2, subject: "g0", hashes: two, deadline: binaryNoDeadline})
	if got := fmt.Sprint(e.mu.options); got != "{true -1ns <nil>  {0 0}}" {
		t.Errorf("got %s", got)
	}
}

// TestBinaryErrors shows that what is wrong with a request is told, and what is right before and
// after is answered.
func TestBinaryErrors(t *testing.T) {
	s, _ := newService(t, nil)
	good := binaryForm{op: 1, size: 2, count: 2, subject: "g0", hashes: make([]byte, 4)}
	change := func(do func(f *binaryForm)) []byte {
		f := good
		do(&f)
		return f.encode()
	}
	reserved := good.encode()
	reserved[28] = 1
	for _, c := range []struct {
		request []byte
		want    string
	}{
		{[]byte("KVQ"), "not a header of KVQ1"},
		{[]byte("KVQ2" + string(make([]byte, 28))), "not a header of KVQ1"},
		{good.encode()[:31], "not a header of KVQ1"},
		{good.encode()[:37], "hashes: after the header are 5 bytes, its lengths make 6"},
		{append(good.encode(), 0), "hashes: after the header are 7 bytes, its lengths make 6"},
		{reserved, "bits are set that have no meaning"},
		{change(func(f *binaryForm) { f.op = 3 }), "op: 3 is neither 1, exists, nor 2, longest_hit"},
		{change(func(f *binaryForm) { f.flags = 8 }), "bits are set that have no meaning"},
		{change(func(f *binaryForm) { f.size = 0 }), "hashes: a hash may not be empty"},
		{change(func(f *binaryForm) { f.count = maxNames + 1 }), "hashes: has more than 1000000 elements"},
		{change(func(f *binaryForm) { f.ranks = 2000 }), "ranks: 2000 is not from 1 to 1024"},
		{change(func(f *binaryForm) { f.request = strings.Repeat("r", 129) }), "request: has 129 bytes, 128 is the limit"},
		{change(func(f *binaryForm) { f.template = "{hash" }), "template: the { at byte 0 is not closed"},
		{change(func(f *binaryForm) { f.subject = "a//b" }), `group: "a//b": a path may not have an empty component, nor end in a slash`},
		{change(func(f *binaryForm) { f.flags, f.hashes = binaryText, []byte("ab..") }), `hashes[1]: "..": a path may not have "." or ".." in it`},
		{change(func(f *binaryForm) { f.op = 2 }), `spec: there is none named "g0"`},
	} {
		var out bytes.Buffer
		s.Query(t.Context(), nil, c.request, &out)
		if r := decodeBinary(t, 1, out.Bytes()); r.err != c.want {
			t.Errorf("%q: got %q, want %q", c.request[:min(len(c.request), 60)], r.err, c.want)
		}
		if r := askBinary(t, s, good); r.states != ".." {
			t.Errorf("then: %+v", r)
		}
	}
}
