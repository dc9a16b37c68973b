package hybrid

// Lookup finds how much is there of a prompt of numTokens tokens. The first numHashes hash blocks
// of the prompt have hashes. It never fails: no groups, no hashes or no tokens are no hit. A nil
// exists says that everything is there.
func (c *Coordinator) Lookup(numTokens, numHashes int, exists Exists) Hit {
	h := c.spec.HashBlockSize
	p := newProbe(c, max(0, min(numHashes, numTokens/h, MaxUnits)), exists)
	defer p.release()
	// In fine mode states may be stored at any unit, else only where a store would.
	p.stored = !c.fine
	hit := Hit{}
	if bound := p.hashes * h / c.align * c.align; bound > 0 && len(c.classes) > 0 {
		hit.Tokens = p.find(bound, true)
		if hit.Tokens >= numTokens {
			// The last token has to be computed for its output. The result is not the hit less a
			// block: a window may then need other blocks.
			hit.Tokens = 0
			if bound = (numTokens - 1) / c.align * c.align; bound > 0 {
				hit.Capped, hit.Tokens = true, p.find(bound, true)
			}
		}
	}
	hit.Load = p.load(hit.Tokens)
	return hit
}

// Load returns which blocks of each group to load for a hit of fixed length (receiver mode). It
// fails if tokens is not a multiple of the alignment.
func (c *Coordinator) Load(tokens int) ([][]bool, error) {
	if err := c.checkTokens(tokens); err != nil {
		return nil, err
	}
	p := newProbe(c, 0, nil)
	defer p.release()
	return p.load(tokens), nil
}

// load is Load as a search in which everything is there. It drops nothing for eagle groups: the
// given hit is already without that.
func (p *probe) load(tokens int) [][]bool {
	p.exists, p.stored, p.hashes = nil, false, tokens/p.c.spec.HashBlockSize
	p.find(tokens, false)
	return p.masks()
}

// find searches all classes for the longest hit of at most limit tokens that they agree on. It
// leaves the span of each class in spans. Each class can only shorten the hit. The search ends when
// a round over all of them did not.
func (p *probe) find(limit int, eagle bool) int {
	classes := p.c.classes
	switch len(classes) {
	case 0:
		return 0
	case 1:
		p.spans[0] = p.class(0, limit, eagle && classes[0].eagle)
		return p.spans[0].tokens
	}
	hit := limit
	var verified uint64
	for first := true; ; first = false {
		now := p.round(first, hit, limit, eagle, &verified)
		done := now >= hit
		hit = now
		// A full class accepts every prefix, so a single class after it decides.
		if done || len(classes) == 2 && classes[0].kind.fullLike() {
			break
		}
	}
	if classes[0].kind.fullLike() {
		p.spans[0].end = min(p.spans[0].end, ceilDiv(hit, classes[0].block))
	}
	return hit
}

// round searches all classes once, in order, each for at most the hit that the one before it left. It returns the hit of
// the last one. verified has the classes that have dropped their last block from this hit already.
func (p *probe) round(first bool, hit, limit int, eagle bool, verified *uint64) int {
	classes := p.c.classes
	for i := range classes {
		if classes[i].kind.fullLike() && !first {
			hit = min(hit, p.spans[i].tokens) // the class accepts each prefix of its hit
			continue
		}
		drop := eagle && classes[i].eagle && *verified>>i&1 == 0
		p.spans[i] = p.class(i, p.bound(i, hit, limit, drop), drop)
		if drop {
			*verified |= 1 << i
		} else if p.spans[i].tokens < hit {
			*verified = 0
		}
		hit = p.spans[i].tokens
	}
	return hit
}

// bound returns up to which token to search class i for a hit of at most now tokens. What is
// dropped from the hit's end may lie beyond them.
func (p *probe) bound(i, now, limit int, drop bool) int {
	cl := &p.c.classes[i]
	switch {
	case !drop || cl.kind == Mamba:
		return now
	case p.c.fine && cl.kind.fullLike() && cl.units > 1:
		return min(now+p.c.spec.HashBlockSize, limit)
	default:
		return min(now+cl.block, limit)
	}
}

// masks returns the spans of the last find as one mask for each group.
func (p *probe) masks() [][]bool {
	total := 0
	for i := range p.c.classes {
		total += p.spans[i].end * len(p.c.classes[i].groups)
	}
	masks := make([][]bool, len(p.c.spec.Groups))
	backing := make([]bool, total) // one allocation for all groups
	for i := range p.c.classes {
		s := p.spans[i]
		for _, g := range p.c.classes[i].groups {
			masks[g], backing = backing[:s.end:s.end], backing[s.end:]
			for b := s.from; b < s.end; b++ {
				masks[g][b] = true
			}
		}
	}
	return masks
}
