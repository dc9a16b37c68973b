package hybrid

import "fmt"

// Range says which blocks of a group are meant.
type Range struct {
	Tokens    int    // end; where it is not the end of a block, the last block ends there
	Skip      int    // tokens from the start that are left out; a block they reach into is left out whole
	NumHashes int    // hash blocks that have hashes; none is not an error but no blocks
	Mask      []bool // for the blocks after Skip: which are meant; those it is too short for are not. nil: all
	Stride    int    // only each Stride-th block, for ranks that share the work; at least 1
	Rank      int    // the first of them
}

// Block is one block of a prompt.
type Block struct {
	Start int // tokens
	End   int
	Unit  int // the hash that names it: that of its last unit
}

// table cuts the prompts of one group into blocks.
type table struct {
	block int // tokens
	hash  int // tokens
}

// newTable returns a table. hash 0 is the same as block.
func newTable(block, hash int) (table, error) {
	if hash == 0 {
		hash = block
	}
	if block <= 0 || hash <= 0 || block%hash != 0 {
		return table{}, fmt.Errorf("%w: block_size (%d) must be a multiple of hash_block_size (%d)", ErrSpec, block, hash)
	}
	return table{block, hash}, nil
}

// blocks returns the blocks of r.
func (t table) blocks(r Range) ([]Block, error) {
	if r.Stride < 1 || r.Rank < 0 || r.Rank >= r.Stride {
		return nil, fmt.Errorf("hybrid: rank %d of stride %d: %w", r.Rank, r.Stride, ErrRange)
	}
	if r.NumHashes <= 0 {
		return nil, nil
	}
	if r.Tokens < 0 || r.Tokens%t.hash != 0 || r.Tokens/t.hash > r.NumHashes {
		return nil, fmt.Errorf("hybrid: token_len (%d) must be a multiple of %d and within %d hash blocks: %w",
			r.Tokens, t.hash, r.NumHashes, ErrRange)
	}
	var blocks []Block
	first := t.first(r.Skip, r.Tokens)
	for b := first; b*t.block < r.Tokens; b++ {
		if r.Mask != nil && b-first >= len(r.Mask) {
			break
		}
		if b%r.Stride != r.Rank || r.Mask != nil && !r.Mask[b-first] {
			continue
		}
		end := min((b+1)*t.block, r.Tokens)
		blocks = append(blocks, Block{b * t.block, end, end/t.hash - 1})
	}
	return blocks, nil
}

// first returns the first block that does not begin within skip tokens.
func (t table) first(skip, tokens int) int {
	return ceilDiv(max(0, min(skip, tokens)), t.block)
}

// Blocks cuts a part of a prompt into the blocks of a group. It fails for a group that is
// not there, if r ends inside of a hash block or beyond the hashes, and without a stride.
func (c *Coordinator) Blocks(group int, r Range) ([]Block, error) {
	if group < 0 || group >= len(c.spec.Groups) {
		return nil, fmt.Errorf("hybrid: group %d of %d: %w", group, len(c.spec.Groups), ErrRange)
	}
	return table{c.spec.Groups[group].BlockSize, c.spec.HashBlockSize}.blocks(r)
}

// Fetch lists the units whose hashes name the blocks to be fetched for a hit, for each group,
// ascending: those in load beyond the cached tokens that the caller has already. Where the
// block that a hit ends in was found under the hash of a later unit, exists says so, and that
// unit is given, so that no key is named that is not there; with a nil exists it is the unit at
// the end of the hit. Nothing to fetch gives empty lists.
func (c *Coordinator) Fetch(tokens, cached, numHashes int, load [][]bool, exists Exists) [][]int {
	units := make([][]int, len(c.spec.Groups))
	tokens = max(0, min(tokens, MaxUnits*c.spec.HashBlockSize))
	skip := max(0, min(cached, tokens)) / c.spec.SchedulerBlockSize * c.spec.SchedulerBlockSize
	total := 0
	for g := range units {
		if g < len(load) {
			for _, wanted := range load[g] {
				total += boolInt(wanted)
			}
		}
	}
	backing := make([]int, 0, total) // one allocation for all groups; it never grows
	for i := range c.classes {
		cl := &c.classes[i]
		for _, g := range cl.groups {
			from := len(backing)
			if g < len(load) {
				backing = c.fetchGroup(backing, cl, g, tokens, skip, numHashes, load[g], exists)
			}
			units[g] = backing[from:len(backing):len(backing)]
		}
	}
	return units
}

// fetchGroup appends the units to be fetched of group g to units.
func (c *Coordinator) fetchGroup(units []int, cl *class, g, tokens, skip, numHashes int, load []bool, exists Exists) []int {
	h := c.spec.HashBlockSize
	end := min(len(load), ceilDiv(tokens, cl.block))
	for b := ceilDiv(skip, cl.block); b < end; b++ {
		if !load[b] {
			continue
		}
		blockEnd := (b + 1) * cl.block
		u := min(blockEnd, tokens)/h - 1
		if exists != nil && blockEnd >= tokens {
			u = witness(cl, g, u, min(blockEnd/h, numHashes), exists)
		}
		if u >= 0 && u < numHashes {
			units = append(units, u)
		}
	}
	return units
}

// witness returns the unit below end that the last block of a hit is stored under, where u
// is the one that it should be under, or -1 if it need not be fetched.
//
// What looks at everything can use a block with more tokens than those of the hit: the search
// accepted it, and then another class shortened the hit within that block. A window of one
// token needs nothing from before the hit; with eagle the search does not even ask for it.
func witness(cl *class, g, u, end int, exists Exists) int {
	if cl.kind.fullLike() {
		for later := u; later >= 0 && later < end; later++ {
			if exists(g, later) {
				return later
			}
		}
		return u // gone since the search: the caller finds that out when it reads
	}
	if cl.kind.window() && cl.reach() == 0 && u >= 0 && u < end && !exists(g, u) {
		return -1
	}
	return u
}
