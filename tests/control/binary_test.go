package control

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// The binary form of requests, written from its description alone.

var le = binary.LittleEndian

// Bits of a binary request.
const (
	noLease    = 1
	promote    = 2
	textHashes = 4
)

// binaryRequest is a request of exists, or of longest_hit.
type binaryRequest struct {
	longest   bool
	flags     byte
	hashes    []string // all of one length; in hexadecimal unless flags has textHashes
	deadline  uint32
	group     string // or spec
	template  string
	request   string
	ranks     uint16
	numTokens uint32
}

// bytes encodes the request.
func (q binaryRequest) bytes() []byte {
	op := byte(1)
	if q.longest {
		op = 2
	}
	width := 0
	if len(q.hashes) > 0 {
		if width = len(q.hashes[0]); q.flags&textHashes == 0 {
			width /= 2
		}
	}
	b := append([]byte("KVQ1"), op, q.flags)
	b = le.AppendUint16(b, uint16(width))
	b = le.AppendUint32(b, uint32(len(q.hashes)))
	b = le.AppendUint32(b, q.deadline)
	for _, s := range []string{q.group, q.template, q.request} {
		b = le.AppendUint16(b, uint16(len(s)))
	}
	b = le.AppendUint16(b, q.ranks)
	b = le.AppendUint32(b, q.numTokens)
	b = append(b, 0, 0, 0, 0)
	b = append(b, q.group+q.template+q.request...)
	for _, h := range q.hashes {
		if q.flags&textHashes == 0 {
			raw, err := hex.DecodeString(h)
			if err != nil {
				panic(err)
			}
			b = append(b, raw...)
		} else {
			b = append(b, h...)
		}
	}
	return b
}

// binaryExists asks in binary.
func (c *dialogue) binaryExists(q binaryRequest) existsAnswer {
	c.t.Helper()
	c.send(q.bytes())
	b := c.receive()
	if len(b) < 24 || string(b[:4]) != "KVA1" || int(le.Uint32(b[20:])) != len(b)-24 {
		c.t.Fatalf("binary answer of %d bytes: %q", len(b), cut(string(b)))
	}
	field := func(at int) int { return int(le.Uint32(b[at:])) }
	a := existsAnswer{Op: "exists", States: string(b[24:]), Hits: field(4), Pending: field(8), Late: field(12), Prefix: field(16)}
	a.Misses = len(a.States) - a.Hits - a.Pending - a.Late // Not in the binary form.
	if err := a.check(); err != nil {
		c.t.Error(err)
	}
	return a
}

// binaryRefused sends bytes and returns an error unless the answer is one.
func (c *dialogue) binaryRefused(request []byte) error {
	c.t.Helper()
	c.send(request)
	b := c.receive()
	if len(b) < 9 || string(b[:4]) != "KVE1" || int(le.Uint32(b[4:])) != len(b)-8 {
		return fmt.Errorf("got %d bytes, %q, want an error in binary", len(b), cut(string(b)))
	}
	return nil
}

// TestBinaryAgrees asks for random sets of blocks in JSON and in binary, with hashes as
// bytes and as text: the answers are the same, and what was written and evicted.
func TestBinaryAgrees(t *testing.T) {
	d := diskMount(t, harness.Options{})
	rnd := newRand(t)
	const n = 60
	coldBlocks(t, d, 4*kib, append(keysOf("g", hashes(n)[:20]), vllmName(0, "7", hash(0)), vllmName(1, "7", hash(0)))...)
	for i := 20; i < 40; i++ {
		put(t, d.Path("g", hash(i)), []byte("x"))
	}
	writer := harness.NewActor(t, nil)
	for i := 40; i < 45; i++ {
		_, err := writer.Open(d.Path("g", hash(i)), unix.O_WRONLY|unix.O_CREAT, 0o644)
		must(t, "open", err)
	}
	c, b := talk(t, d, "query"), talk(t, d, "query")
	const states = "dddddddddddddddddddd" + "mmmmmmmmmmmmmmmmmmmm" + "wwwww" + "..............."
	for round := range 200 {
		var set []string
		var want []byte
		for range rnd.IntN(100) {
			i := rnd.IntN(n)
			set = append(set, hash(i))
			want = append(want, states[i])
		}
		q := binaryRequest{flags: noLease, group: "g", hashes: set, request: "req-b"}
		request := obj{"hashes": append([]string{}, set...), "group": "g", "lease": false}
		if round%2 == 1 {
			q.template = "{group}/{hash:0:4}{hash:4:32}"
			request["template"] = q.template
		}
		asJSON := c.exists(request)
		asBytes := b.binaryExists(q)
		q.flags |= textHashes
		asText := b.binaryExists(q)
		if asJSON.States != string(want) || asBytes != asJSON || asText != asJSON {
			t.Fatalf("round %d:\nwant %q\ngot  %+v in JSON\n     %+v in binary\n     %+v with hashes as text", round, want, asJSON, asBytes, asText)
		}
	}
	// Ranks, and a mixed-case hash: bytes are written in lower case, text as it stands.
	q := binaryRequest{flags: noLease, group: "7", template: vllmTemplate, ranks: 2, hashes: []string{hash(0), hash(1)}}
	if got := b.binaryExists(q); got.States != "d." {
		t.Errorf("two ranks: got %q, want d.", got.States)
	}
	upper := strings.ToUpper(hash(30))
	q = binaryRequest{flags: noLease, group: "g", hashes: []string{upper}}
	if got := b.binaryExists(q); got.States != "m" {
		t.Errorf("bytes: got %q, want m", got.States)
	}
	q.flags |= textHashes
	if got := b.binaryExists(q); got.States != "." {
		t.Errorf("text in upper case: got %q, want a miss", got.States)
	}
	if got := b.binaryExists(binaryRequest{group: "g"}); got.States != "" {
		t.Errorf("no hashes: got %+v", got)
	}
}

// TestBinaryPromote shows the bits for the lease and for promotion in a binary request.
func TestBinaryPromote(t *testing.T) {
	d := diskMount(t, harness.Options{})
	coldBlocks(t, d, 64*kib, "g/"+hash(0), "g/"+hash(1))
	f := follow(t, d, nil)
	c := talk(t, d, "query")
	q := binaryRequest{flags: promote, group: "g", hashes: hashes(3), request: "req-p"}
	if got := c.binaryExists(q); got.States != "dd." {
		t.Errorf("got %q, want what was there before", got.States)
	}
	f.allStored("memory", "promoted", "g/"+hash(0), "g/"+hash(1))
}

// TestBinaryMalformed gives faulty binary requests: each has an answer that is an error
// in binary, and the same descriptor takes the next request.
func TestBinaryMalformed(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	put(t, d.Path("g", hash(0)), []byte("x"))
	c := talk(t, d, "query")
	good := binaryRequest{group: "g", hashes: hashes(3), request: "req"}
	change := func(at int, b ...byte) []byte {
		all := good.bytes()
		copy(all[at:], b)
		return all
	}
	whole := good.bytes()
	for _, row := range []struct {
		name    string
		request []byte
	}{
		{"the magic alone", whole[:4]},
		{"the magic of another version", change(0, []byte("KVQ2")...)},
		{"a header that ends early", whole[:31]},
		{"the header alone", whole[:32]},
		{"a byte less", whole[:len(whole)-1]},
		{"a byte more", append(good.bytes(), 0)},
		{"operation 0", change(4, 0)},
		{"operation 3", change(4, 3)},
		{"operation 255", change(4, 255)},
		{"a bit that does not exist", change(5, 0x80)},
		{"hashes of no bytes", change(6, 0, 0)},
		{"more hashes than there are", change(8, 4, 0, 0, 0)},
		{"4 billion hashes", change(8, 255, 255, 255, 255)},
		{"hashes of 65,535 bytes", change(6, 255, 255)},
		{"4 billion hashes of 65,535 bytes", change(6, 255, 255, 255, 255, 255, 255)},
		{"a group longer than the request", change(16, 255, 255)},
		{"a template longer than the request", change(18, 255, 255)},
		{"a request id longer than the request", change(20, 255, 255)},
		{"a spec that does not exist", binaryRequest{longest: true, group: "none", hashes: hashes(3)}.bytes()},
		{"a template that is not closed", binaryRequest{group: "g", template: "{group}/{hash", hashes: hashes(3)}.bytes()},
		{"a template of nothing that is known", binaryRequest{group: "g", template: "{what}/{hash}", hashes: hashes(3)}.bytes()},
		{"a request id of 129 bytes", binaryRequest{group: "g", request: strings.Repeat("r", 129), hashes: hashes(3)}.bytes()},
		{"a reserved field that is not 0", change(28, 1)},
	} {
		t.Run(row.name, func(t *testing.T) {
			c.t = t
			if err := c.binaryRefused(row.request); err != nil {
				t.Error(err)
			}
			if got := c.binaryExists(good); got.States != "m.." {
				t.Errorf("the next request: got %q, want m..", got.States)
			}
		})
	}
	c.t = t
}
