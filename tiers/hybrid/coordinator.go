package hybrid

import "slices"

// Exists reports whether a block is there. The block is that of the group at this position, under
// the hash of this unit. A search asks for each pair at most once, and never out of range.
type Exists func(group, unit int) bool

// Hit is how many tokens of a prompt are there.
type Hit struct {
	Tokens int      // a multiple of the alignment
	Load   [][]bool // for each group: which of its blocks are to be loaded; the rest is not needed

	// Capped says that all of the prompt was there. Tokens is then less, since the last part has to
	// be computed again. A prompt with nothing before that part has no hit, capped or not.
	Capped bool
}

// Coordinator answers for one Spec. It is constant after New. All its methods may be called in
// parallel. They do no I/O, and allocate nothing per key beyond the answer.
type Coordinator struct {
	spec    Spec
	fine    bool // answers may end inside of a block
	align   int  // A, tokens
	classes []class
}

// class is the common part of groups with equal specs. They are searched as one: a unit is there if
// all of them have it.
type class struct {
	kind    Kind
	block   int // B, tokens
	window  int
	chunk   int
	mode    string
	variant int

	eagle  bool
	groups []int // positions, ascending
	units  int   // hash blocks in a block
	keep   keep  // what a dense store keeps of it, so what is worth a question
}

// New makes a Coordinator. It fails with all reasons against spec, joined by "; " (C4): what
// engines do not support, sizes that do not divide, and unknown kinds.
func New(spec Spec) (*Coordinator, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	return build(spec.withDefaults())
}

// build makes a Coordinator of any Spec that a search can work on. That includes Specs that New
// refuses because their answers would be useless.
func build(spec Spec) (*Coordinator, error) {
	var r reasons
	if spec.sizes(&r); len(r) > 0 {
		return nil, r.err()
	}
	c := &Coordinator{spec: spec, fine: spec.fine(), align: spec.SchedulerBlockSize, classes: spec.classes()}
	if c.fine {
		c.align = spec.HashBlockSize
	}
	for i := range c.classes {
		cl := &c.classes[i]
		cl.units = cl.block / spec.HashBlockSize
		cl.keep = cl.keepEvery(spec.SchedulerBlockSize, nil)
	}
	return c, nil
}

// fine reports whether answers are aligned to hash blocks. They are if states of Mamba groups are
// kept inside their blocks too.
func (s *Spec) fine() bool {
	return slices.ContainsFunc(s.Groups, func(g Group) bool {
		return g.Kind == Mamba && g.Mode == modeAlign && g.BlockSize > s.HashBlockSize
	})
}

// classes merges the groups with equal specs. Classes that look at everything come first, the
// others in the order of their first member. It works on any Spec.
func (s *Spec) classes() []class {
	var classes []class
	flagged := false
	for i, g := range s.Groups {
		cl := class{kind: g.Kind, block: g.BlockSize, window: g.Window, chunk: g.Chunk, mode: g.Mode, variant: g.Variant}
		at := slices.IndexFunc(classes, cl.equal)
		if at < 0 {
			at = len(classes)
			classes = append(classes, cl)
		}
		classes[at].groups = append(classes[at].groups, i)
		classes[at].eagle = classes[at].eagle || g.Eagle
		flagged = flagged || g.Eagle
	}
	if s.Eagle && !flagged {
		for i := range classes {
			classes[i].eagle = true
		}
	}
	slices.SortStableFunc(classes, func(a, b class) int {
		switch {
		case a.kind.fullLike() == b.kind.fullLike():
			return 0
		case a.kind.fullLike():
			return -1
		default:
			return 1
		}
	})
	return classes
}

// equal reports whether cl and other hold groups of one class.
func (cl class) equal(other class) bool {
	return cl.kind == other.kind && cl.block == other.block && cl.window == other.window &&
		cl.chunk == other.chunk && cl.mode == other.mode && cl.variant == other.variant
}

// Spec returns the Spec of c with defaults filled in. It must not be changed.
func (c *Coordinator) Spec() *Spec { return &c.spec }
