package control

import (
	"encoding/binary"
	"encoding/hex"
)

// The binary form of requests, written from its description alone.

var le = binary.LittleEndian

// Bits of a binary request.
const (
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
