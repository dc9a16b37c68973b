package tiertest

import (
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Op is a kind of block operation. A job of n blocks is n operations.
type Op uint8

const (
	OpAny    Op = iota // in a Rule: each of the others
	OpStore            // one block of a Store
	OpLoad             // one block of a Load
	OpLookup           // one key of a Lookup
	OpSync             // one Sync, of the zero key
)

// String returns "any", "store", "load", "lookup" or "sync".
func (o Op) String() string {
	return [...]string{"any", "store", "load", "lookup", "sync"}[o]
}

// Fault is a fault of one block operation. The zero Fault is none.
type Fault struct {
	// Err fails the operation; wrap one of the block kinds. One key is
	// enough to fail a whole Lookup.
	Err error

	// Corrupt damages a byte of the tier's copy. A Load then fails with ErrCorrupt and the copy is
	// dropped. After a Store, the next Load detects it.
	Corrupt bool
}

// Rule says which operations get a Fault.
type Rule struct {
	Op    Op                   // OpAny matches each
	Match func(block.Key) bool // nil matches each key; may run in parallel
	Nth   int                  // only the n-th operation that matches, from 1; 0: no limit
	Every int                  // only each n-th operation that matches; 0 and 1: all
	Fault Fault
}

// Plan is the list of rules for fault injection: the first rule that matches an operation applies.
// A nil Plan injects nothing. Its methods may be called in parallel.
type Plan struct {
	rules    atomic.Pointer[[]*countedRule]
	injected atomic.Int64
}

// countedRule is a Rule and the number of operations it has matched so far.
type countedRule struct {
	Rule
	matched atomic.Int64
}

// NewPlan returns a plan with these rules.
func NewPlan(rules ...Rule) *Plan {
	p := &Plan{}
	p.Set(rules...)
	return p
}

// Set replaces the rules; their counts start at zero.
func (p *Plan) Set(rules ...Rule) {
	counted := make([]*countedRule, len(rules))
	for i, r := range rules {
		counted[i] = &countedRule{Rule: r}
	}
	p.rules.Store(&counted)
}

// Injected returns how many operations have had a fault so far.
func (p *Plan) Injected() int64 { return p.injected.Load() }

// next counts one operation and returns its fault, if it has one.
func (p *Plan) next(op Op, key block.Key) (Fault, bool) {
	if p == nil {
		return Fault{}, false
	}
	for _, r := range *p.rules.Load() {
		if r.Op != OpAny && r.Op != op || r.Match != nil && !r.Match(key) {
			continue
		}
		n := r.matched.Add(1)
		if r.Nth != 0 && n != int64(r.Nth) || r.Every > 1 && n%int64(r.Every) != 0 {
			continue
		}
		p.injected.Add(1)
		return r.Fault, true
	}
	return Fault{}, false
}

// lookup returns the error of the first of these look-ups that has one; out is then all Miss.
func (p *Plan) lookup(keys []block.Key, out []driver.Presence) error {
	for _, key := range keys {
		if f, ok := p.next(OpLookup, key); ok && f.Err != nil {
			clear(out)
			return f.Err
		}
	}
	return nil
}
