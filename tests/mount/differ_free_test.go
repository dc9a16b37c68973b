package mount

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// differModels follow one sequence: a model of POSIX, and the states that kvfs
// may be in.
type differModels struct {
	posix  *model
	states []*model
}

// differStatesLimit is how many states to follow.
const differStatesLimit = 512

func newDifferModels(disk, direct bool) *differModels {
	return &differModels{posix: newModel(false, false, false), states: []*model{newModel(true, disk, direct)}}
}

// reference checks the model of POSIX.
func (m *differModels) reference(op differOp, want differResult) error {
	b := m.posix.branches(op)
	if len(b) != 1 || !b[0].answer.foresees(want) {
		return fmt.Errorf("%v: it has %v, the model %v", op, want, b[0].answer)
	}
	m.posix = b[0].next
	return nil
}

// kvfs reports whether kvfs may answer got, or what it may answer. A difference
// from the answer of ext4 must have a reason.
func (m *differModels) kvfs(op differOp, got, ext4 differResult, tally *differTally) (wanted string, ok bool) {
	var next []*model
	var chosen *modelAnswer
	var all []string
	known := map[string]bool{}
	for _, state := range m.states {
		for _, b := range state.branches(op) {
			if s := b.answer.String(); !slices.Contains(all, s) {
				all = append(all, s)
			}
			if !b.answer.foresees(got) {
				continue
			}
			if chosen == nil {
				chosen = &b.answer
			}
			if s := b.next.print(); !known[s] {
				known[s] = true
				next = append(next, b.next)
			}
		}
	}
	wanted = fmt.Sprintf("%s (ext4: %v)", strings.Join(all, ", or "), ext4)
	if chosen == nil {
		return wanted, false
	}
	tally.steps++
	tally.states = max(tally.states, len(next))
	m.states = next[:min(len(next), differStatesLimit)]
	if len(all) > 1 {
		for _, what := range chosen.reasons {
			tally.picks[what]++
		}
	}
	if got.matches(ext4) {
		return wanted, true
	}
	tally.rules[chosen.rule.String()]++
	return wanted + ", but no rule says so", chosen.rule != 0
}

// differTally counts the results of the steps of sequences.
type differTally struct {
	steps  int
	rules  map[string]int // answers unlike those of ext4, by the rules that say so
	picks  map[string]int // answers of which the rules allow several, by what they leave open
	states int            // how many states there were at most
}

func newDifferTally() *differTally {
	return &differTally{rules: map[string]int{}, picks: map[string]int{}}
}

func (y *differTally) log(t testing.TB) {
	if y.steps == 0 {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d answers, at most %d states; unlike ext4 by rule:\n", y.steps, y.states)
	for _, name := range slices.Sorted(maps.Keys(y.rules)) {
		fmt.Fprintf(&b, "%8d %s\n", y.rules[name], name)
	}
	b.WriteString("left open:\n")
	for _, name := range slices.Sorted(maps.Keys(y.picks)) {
		fmt.Fprintf(&b, "%8d %s\n", y.picks[name], name)
	}
	t.Log(b.String())
}

// TestDifferModel shows that the model of the differential test answers as ext4
// does without the rules of kvfs, and that with them each answer that is another
// has a rule that says so.
func TestDifferModel(t *testing.T) {
	seed := newRand(t).Uint64()
	dir, kind := differReference(t)
	t.Logf("compared with %s", kind)
	w := newDifferWorld(t, dir)
	rnd := rand.New(rand.NewPCG(seed, 0))
	tally := newDifferTally()
	defer tally.log(t)
	for i := range 60 {
		mix := &differMixes[len(differMixes)-1]
		steps := slices.Concat(differSequence(mix, seed+uint64(i), true), differWalk(mix, 0), differWalk(mix, 1), differCloseAll())
		if i%4 == 0 {
			steps = append(differSequence(mix, seed+uint64(i), true), differStep{{Do: "crash"}})
		}
		steps = append(steps, differWalk(mix, differWalker)...)
		w.begin()
		ops := slices.Concat(steps...)
		results, err := w.run(ops)
		must(t, "run", err)
		must(t, "end", w.end())
		m := newDifferModels(false, false)
		for at, op := range ops {
			text := func() string { return differText([]differStep{ops[:at+1]}) }
			if err := m.reference(op, results[at]); err != nil {
				t.Fatalf("sequence %d\n%s\t-- %v", i, text(), err)
			}
			b := m.states[rnd.IntN(len(m.states))].branches(op)
			answer := b[rnd.IntN(len(b))].answer
			slices.Sort(answer.Names)
			if wanted, ok := m.kvfs(op, answer.differResult, results[at], tally); !ok {
				t.Fatalf("sequence %d\n%s\t-- got %v, want %s", i, text(), answer, wanted)
			}
		}
	}
}
