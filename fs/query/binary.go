package query

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"

	"github.com/kvfs/kvfs/fs/strict"
)

// The binary form of requests and answers. docs/control.md has the layout.
const (
	binaryPrefix  = "KVQ"
	binaryRequest = "KVQ1"
	binaryAnswer  = "KVA1"
	binaryError   = "KVE1"
	binaryHeader  = 32 // bytes

	binaryExists     = 1
	binaryLongestHit = 2

	binaryNoLease = 1
	binaryPromote = 2
	binaryText    = 4

	binaryNoDeadline = 0xffffffff
)

// binary answers a request in binary form, and returns what is wrong with it.
func (s *Service) binary(ctx context.Context, sc *scratch, request []byte, answer io.Writer) *strict.Error {
	err := sc.q.readBinary(request)
	if err == nil && request[4] == binaryExists {
		err = s.binaryExists(ctx, sc)
	} else if err == nil {
		err = s.binaryHit(ctx, sc)
	}
	if err != nil {
		text := err.Error()
		sc.out = append(sc.out[:0], binaryError...)
		sc.out = binary.LittleEndian.AppendUint32(sc.out, uint32(len(text)))
		sc.out = append(sc.out, text...)
	}
	finish(sc, answer, nil)
	return err
}

// checkHeader refuses a request that does not begin with a header of the binary form.
func checkHeader(request []byte) *strict.Error {
	if len(request) < binaryHeader || !bytes.HasPrefix(request, []byte(binaryRequest)) {
		return &strict.Error{Why: "not a header of " + binaryRequest}
	}
	op, flags, reserved := request[4], request[5], request[28:binaryHeader]
	if op != binaryExists && op != binaryLongestHit {
		return strict.Faulty("/op", "%d is neither %d, exists, nor %d, longest_hit", op, binaryExists, binaryLongestHit)
	}
	if flags&^(binaryNoLease|binaryPromote|binaryText) != 0 || binary.LittleEndian.Uint32(reserved) != 0 {
		return &strict.Error{Why: "bits are set that have no meaning"}
	}
	return nil
}

// readBinary reads a request. Errors name its fields as in JSON.
func (q *query) readBinary(request []byte) *strict.Error {
	if err := checkHeader(request); err != nil {
		return err
	}
	op := opExists
	if request[4] == binaryLongestHit {
		op = opLongestHit
	}
	u16, u32, flags := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32, request[5]
	*q = query{op: op, has: hasHashes, lease: flags&binaryNoLease == 0, promote: flags&binaryPromote != 0, promptTokens: -1}
	n := &q.names
	n.list, n.hex, n.ranks = "/hashes", flags&binaryText == 0, max(1, int(u16(request[22:])))
	n.size, n.count = int(u16(request[6:])), int(u32(request[8:]))
	subject, template, id := int(u16(request[16:])), int(u16(request[18:])), int(u16(request[20:]))
	rest := request[binaryHeader:]
	switch {
	case n.count > maxNames:
		return strict.Faulty("/hashes", "has more than %d elements", maxNames)
	case n.count > 0 && n.size == 0:
		return strict.Faulty("/hashes", "a hash may not be empty")
	case n.ranks > maxRanks:
		return strict.Faulty("/ranks", "%d is not from 1 to %d", n.ranks, maxRanks)
	case id > maxRequestID:
		return strict.Faulty("/request", "has %d bytes, %d is the limit", id, maxRequestID)
	case len(rest) != subject+template+id+n.count*n.size:
		return strict.Faulty("/hashes", "after the header are %d bytes, its lengths make %d", len(rest), subject+template+id+n.count*n.size)
	}
	q.specName, n.group = rest[:subject], rest[:subject]
	if template > 0 {
		n.template = rest[subject : subject+template]
	}
	q.request = string(rest[subject+template : subject+template+id])
	n.raw = rest[subject+template+id:]
	if tokens := u32(request[24:]); tokens != 0 {
		q.numTokens, q.has = int64(tokens), q.has|hasNumTokens
	}
	switch ms := u32(request[12:]); ms {
	case 0:
	case binaryNoDeadline:
		q.has |= hasDeadline // 0 ms is no deadline
	default:
		q.deadline, q.has = int64(ms), q.has|hasDeadline
	}
	return nil
}

// appendHeader appends the header of an answer.
func appendHeader(out []byte, numbers ...int) []byte {
	out = append(out, binaryAnswer...)
	for _, n := range numbers {
		out = binary.LittleEndian.AppendUint32(out, uint32(min(n, math.MaxUint32)))
	}
	return out
}

func (s *Service) binaryExists(ctx context.Context, sc *scratch) *strict.Error {
	l, err := sc.q.names.prepare()
	if err != nil {
		return err
	}
	c, err := s.lookAll(ctx, sc, l)
	if err != nil {
		return err
	}
	sc.out = append(appendHeader(sc.out[:0], c.hits, c.pending, c.late, c.prefix, len(sc.states)), sc.states...)
	return nil
}

func (s *Service) binaryHit(ctx context.Context, sc *scratch) *strict.Error {
	f, err := s.lookHit(ctx, sc)
	if err != nil {
		return err
	}
	capped := 0
	if f.hit.Capped {
		capped = 1
	}
	out := appendHeader(sc.out[:0], f.hit.Tokens, f.v.pending, f.v.late, capped, len(f.spec.Groups))
	for i := range f.spec.Groups {
		load := f.load(i)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(load)))
		out = appendBits(out, load)
	}
	sc.out = out
	return nil
}
