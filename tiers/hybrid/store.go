package hybrid

import "fmt"

// Stored says which blocks of a group to store: Mask[i] is for chunk Start+i.
type Stored struct {
	Start int
	End   int    // one past the last chunk
	Mask  []bool // nil: all of them
}

// keep says which blocks of a class are worth storing. These are all, or the last need of every
// many, counted from shift on. With every 0 none are.
type keep struct {
	all   bool
	shift int
	need  int
	every int
}

// has reports whether chunk i is worth storing.
func (k keep) has(i int) bool {
	return k.all || k.every > 0 && i >= k.shift && (i-k.shift)%k.every >= k.every-k.need
}

// keepEvery returns what to keep of cl so that a prompt can be resumed at each multiple of the
// scheduler's block (interval nil), of the interval, or nowhere (interval 0).
func (cl *class) keepEvery(scheduler int, interval *int) keep {
	k := keep{need: 1}
	segment := scheduler
	if interval != nil {
		segment = *interval
	}
	switch {
	case cl.kind.window():
		k.shift = boolInt(cl.eagle)
		k.need = cl.reach() + k.shift
		if segment > 0 {
			k.every = segment / cl.block
			k.all = k.need >= k.every
		}
	case cl.kind == Mamba && interval != nil:
		if segment > 0 {
			k.every = segment / cl.block
			k.all = k.every <= 1
		}
	default:
		k.all = true
	}
	return k
}

// reach returns over how many blocks before a boundary the window of cl reaches.
func (cl *class) reach() int { return ceilDiv(cl.window-1, cl.block) }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Store returns, for each group, which blocks are worth storing of a prompt's first tokens tokens,
// from token start on. prompt is the length of the prompt, negative if unknown. It fails if tokens
// is not a multiple of the alignment.
func (c *Coordinator) Store(tokens, start, prompt int) ([]Stored, error) {
	if err := c.checkTokens(tokens); err != nil {
		return nil, err
	}
	stored := make([]Stored, len(c.spec.Groups))
	for i := range c.classes {
		cl := &c.classes[i]
		s := Stored{End: tokens / cl.block}
		s.Start = min(s.End, ceilDiv(min(max(start, 0), tokens), cl.block))
		s.Mask = c.storeMask(cl, s.Start, s.End, prompt)
		for n, g := range cl.groups {
			stored[g] = s
			if n > 0 && s.Mask != nil {
				// The caller may change each group's mask.
				stored[g].Mask = append(make([]bool, 0, len(s.Mask)), s.Mask...)
			}
		}
	}
	return stored, nil
}

// storeMask returns the mask of chunks start to end of cl, nil if all are to be stored.
func (c *Coordinator) storeMask(cl *class, start, end, prompt int) []bool {
	k := cl.keepEvery(c.spec.SchedulerBlockSize, c.spec.Retention)
	if k.all {
		return nil
	}
	mask := make([]bool, end-start)
	for i := range mask {
		mask[i] = k.has(start + i)
	}
	if c.spec.Retention == nil || prompt < 0 {
		return mask
	}
	// What a replay of the same prompt needs: it can be resumed at the last scheduler block before
	// its last token.
	sched := c.spec.SchedulerBlockSize
	edge := floorDiv(prompt-1, sched)*(sched/cl.block) + k.shift
	for i := max(start, edge-k.need); i < min(end, edge); i++ {
		mask[i-start] = true
	}
	return mask
}

// checkTokens fails if tokens cannot be the length of an answer.
func (c *Coordinator) checkTokens(tokens int) error {
	if tokens < 0 || tokens > MaxUnits*c.spec.HashBlockSize {
		return fmt.Errorf("hybrid: token_len (%d) must be in 0..%d: %w", tokens, MaxUnits*c.spec.HashBlockSize, ErrRange)
	}
	if tokens%c.align != 0 {
		return fmt.Errorf("hybrid: aligned_token_len (%d) must be a multiple of %d: %w", tokens, c.align, ErrRange)
	}
	return nil
}
