package query

import (
	"context"
	"io"
	"strconv"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// maxMaskBlocks bounds the blocks of all groups in an answer about blocks that the request does not
// list.
const maxMaskBlocks = 4_000_000

// checkMask fails if the masks for so many tokens would be too long.
func checkMask(field string, tokens int64, spec *hybrid.Spec) *strict.Error {
	blocks := int64(0)
	for _, g := range spec.Groups {
		blocks += tokens/int64(g.BlockSize) + 1
	}
	if blocks > maxMaskBlocks {
		return strict.Faulty(field, "%d tokens have more than %d blocks", tokens, maxMaskBlocks)
	}
	return nil
}

// loadMask answers which blocks to read for a hit of given length.
func (s *Service) loadMask(_ context.Context, sc *scratch, _ io.Writer) *strict.Error {
	q := &sc.q
	c, err := s.coordinator(q)
	if err != nil {
		return err
	}
	spec := c.Spec()
	if err := checkMask("/hit_tokens", q.hitTokens, spec); err != nil {
		return err
	}
	tokens, unit := int(q.hitTokens), spec.HashBlockSize
	load, failed := c.Load(tokens)
	if failed != nil {
		return strict.Faulty("/hit_tokens", "%v", failed)
	}
	hashes := (tokens + unit - 1) / unit
	if q.has&hasNumHashes != 0 {
		if q.numHashes < int64(hashes) {
			return strict.Faulty("/num_hashes", "%d hashes are too few for %d tokens", q.numHashes, tokens)
		}
		hashes = int(q.numHashes)
	}
	fetch := c.Fetch(tokens, int(q.cached), hashes, load, nil)
	out := appendNumber(append(sc.out[:0], `{"op": "load_mask"`...), "hit_tokens", tokens)
	out = append(out, `, "groups": [`...)
	for i, g := range spec.Groups {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = appendGroup(out, g.Name, load[i])
		out = append(appendList(append(out, `, "fetch": `...), fetch[i]), '}')
	}
	sc.out = append(out, "]}\n"...)
	return nil
}

// storeMask answers which blocks are worth writing.
func (s *Service) storeMask(_ context.Context, sc *scratch, _ io.Writer) *strict.Error {
	q := &sc.q
	c, err := s.coordinator(q)
	if err != nil {
		return err
	}
	if err := checkMask("/num_tokens", q.numTokens, c.Spec()); err != nil {
		return err
	}
	stored, failed := c.Store(int(q.numTokens), int(q.start), int(q.promptTokens))
	if failed != nil {
		return strict.Faulty("/num_tokens", "%v", failed)
	}
	out := append(sc.out[:0], `{"op": "store_mask", "groups": [`...)
	for i, g := range c.Spec().Groups {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = appendText(append(out, `{"name": `...), g.Name)
		out = strconv.AppendInt(append(out, `, "start": `...), int64(stored[i].Start), 10)
		out = appendNumber(out, "end", stored[i].End)
		if stored[i].Mask == nil {
			out = append(out, `, "store": null}`...)
			continue
		}
		out = appendBits(append(out, `, "store": "`...), stored[i].Mask)
		out = append(out, `"}`...)
	}
	sc.out = append(out, "]}\n"...)
	return nil
}
