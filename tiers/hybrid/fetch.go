package hybrid

// Fetch lists, for each group, the units whose hashes name the blocks to fetch for a hit. They are
// ascending: those in load beyond the cached tokens that the caller already has. The block that a
// hit ends in may have been found under the hash of a later unit. Fetch asks exists and gives that
// unit, so it names no key that is not there. With a nil exists it gives the unit at the end of the
// hit. If there is nothing to fetch, the lists are empty.
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

// witness returns the unit below end under which the last block of a hit is stored. u is the unit
// under which it should be. It returns -1 if the block need not be fetched.
//
// A group that looks at everything can use a block with more tokens than the hit: the search
// accepted the block, and then another class shortened the hit within it. A window of one token
// needs nothing from before the hit. With eagle the search does not even ask for it.
func witness(cl *class, g, u, end int, exists Exists) int {
	if cl.kind.fullLike() {
		for later := u; later >= 0 && later < end; later++ {
			if exists(g, later) {
				return later
			}
		}
		return u // gone since the search: the caller finds out when it reads
	}
	if cl.kind.window() && cl.reach() == 0 && u >= 0 && u < end && !exists(g, u) {
		return -1
	}
	return u
}
