package suite

import (
	"slices"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// parallelCases run many operations at once, for the race detector and the model.
func parallelCases() []suiteCase {
	return []suiteCase{
		{name: "ParallelRandom", run: func(h *harness) { checkParallelRandom(h, 4096, h.opts.Faulty) }},
		{name: "ParallelRandomSmall", run: checkParallelRandomSmall, needs: needsSmall},
	}
}

// checkParallelRandomSmall: as checkParallelRandom, with constant eviction.
func checkParallelRandomSmall(h *harness) {
	h.useSmall()
	checkParallelRandom(h, h.opts.SmallBytes, true)
}

// checkParallelRandom: several goroutines run random operations on their own blocks, which a model
// follows, and on common blocks. An own block is where the model says, unless the tier is lossy:
// faulty or too small. Its bytes are in any case those of its last Store.
func checkParallelRandom(h *harness, maxBytes int64, lossy bool) {
	const workers, steps = 4, 150
	shared := make([]payload, 6)
	for i := range shared {
		shared[i] = h.payload(numberedKey("shared", i), 0, 1+h.rng.Int64N(maxBytes))
	}
	var wg sync.WaitGroup
	for n := range workers {
		m := newModel(h.worker(n), n, maxBytes, lossy, shared)
		wg.Go(func() {
			for range steps {
				m.step()
			}
		})
	}
	wg.Wait()
}

// presenceModel is what a worker knows about one of its own blocks.
type presenceModel uint8

const (
	isAbsent  presenceModel = iota // never stored, or removed since
	isPresent                      // stored, and the tier may not drop it
	isUnknown                      // stored, and the tier may have dropped it
)

// model is one worker of checkParallelRandom.
type model struct {
	*harness
	lossy  bool
	own    []payload // the present generation
	state  []presenceModel
	gen    []int
	max    int64
	shared []payload
}

func newModel(h *harness, worker int, maxBytes int64, lossy bool, shared []payload) *model {
	m := &model{harness: h, lossy: lossy, max: maxBytes, shared: shared}
	const keys = 6
	m.state, m.gen, m.own = make([]presenceModel, keys), make([]int, keys), make([]payload, keys)
	for i := range m.own {
		key := numberedKey("own", worker*keys+i)
		m.own[i] = m.payload(key, 0, 1+m.rng.Int64N(maxBytes))
	}
	return m
}

// pick chooses some of the worker's own blocks, in random order, at least one.
func (m *model) pick() []int {
	return m.rng.Perm(len(m.own))[:1+m.rng.IntN(len(m.own))]
}

func (m *model) step() {
	switch n := m.rng.IntN(100); {
	case n < 35:
		m.stepStore()
	case n < 70:
		m.stepLoad()
	case n < 80:
		m.stepRemove()
	case n < 90:
		m.stepLookup()
	case n < 95:
		m.tier.Touch(keysOf(append(slices.Clone(m.shared), m.own...)))
	default:
		m.tier.Remove(keysOf(m.shared)[:1+m.rng.IntN(len(m.shared))])
	}
}

// batch returns the chosen blocks, followed by one common block, and sometimes a parallel job: a
// load of all common blocks.
func (m *model) batch(picked []int) (blocks []payload, beside *flight) {
	for _, i := range picked {
		blocks = append(blocks, m.own[i])
	}
	blocks = append(blocks, m.shared[m.rng.IntN(len(m.shared))])
	if m.rng.IntN(4) == 0 {
		beside = m.submit(jobSpec{op: loadJob, blocks: m.shared})
	}
	return blocks, beside
}

func (m *model) stepStore() {
	picked := m.pick()
	blocks, beside := m.batch(picked)
	outcomes := m.store(blocks...)
	for at, i := range picked {
		got := outcomes[at].Status
		switch {
		case m.lossy:
			m.wantStatus(outcomes, at, driver.Stored, driver.Skipped)
		case m.state[i] == isPresent:
			m.wantHeld(outcomes, at)
		default:
			m.wantStatus(outcomes, at, driver.Stored)
		}
		if m.lossy {
			m.state[i] = isUnknown
		} else if got == driver.Stored || got == driver.Skipped && outcomes[at].Err == nil {
			m.state[i] = isPresent
		}
	}
	m.wantStatus(outcomes, len(picked), driver.Stored, driver.Skipped)
	m.settleBeside(beside)
}

func (m *model) stepLoad() {
	picked := m.pick()
	blocks, beside := m.batch(picked)
	outcomes := m.load(blocks...)
	for at, i := range picked {
		switch m.state[i] {
		case isAbsent:
			m.wantStatus(outcomes, at, driver.Absent)
			m.never(outcomes[at:at+1], driver.Loaded, "it was removed before")
		case isPresent:
			m.wantStatus(outcomes, at, driver.Loaded)
		case isUnknown:
			m.wantStatus(outcomes, at, driver.Loaded, driver.Absent)
		}
	}
	m.settleBeside(beside)
}

// settleBeside checks a load of common blocks. Any result is allowed, except wrong bytes.
func (m *model) settleBeside(f *flight) {
	if f != nil {
		m.settle(f)
	}
}

// stepRemove removes blocks and continues with their next generation, so the old bytes are wrong
// from now on.
func (m *model) stepRemove() {
	var keys []block.Key
	held := 0
	for _, i := range m.pick() {
		keys = append(keys, m.own[i].key)
		if m.state[i] == isPresent {
			held++
		}
		m.state[i] = isAbsent
		m.gen[i]++
		m.own[i] = m.payload(m.own[i].key, m.gen[i], 1+m.rng.Int64N(m.max))
	}
	if n := m.tier.Remove(keys); !m.lossy && n != held {
		m.errorf("Remove of %d blocks: got %d, want %d", len(keys), n, held)
	}
	m.wantPresence(driver.Miss, keys...)
}

func (m *model) stepLookup() {
	out, ok := m.lookup(keysOf(m.own)...)
	if !ok {
		return
	}
	for i, got := range out {
		switch {
		case m.state[i] == isAbsent && got != driver.Miss:
			m.errorf("Lookup %v: got %v, want miss", m.own[i].key, got)
		case m.state[i] == isPresent && got != driver.Hit:
			m.errorf("Lookup %v: got %v, want hit", m.own[i].key, got)
		}
	}
}
