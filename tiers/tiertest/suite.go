package tiertest

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
)

// Options says what the suite may expect of the tier. The zero value works for a
// tier with room for 32 MiB.
type Options struct {
	// Small opens an empty tier with room for at least SmallBlocks blocks of
	// SmallBytes bytes each and for fewer than twice as many. Nil leaves out
	// what needs a full tier.
	Small func(t *testing.T) tiers.Tier
	// SmallBlocks is the room of Small in blocks. Zero means 8; at least 2.
	SmallBlocks int
	// SmallBytes is the size of a block for Small. Zero means 4096; at least 1.
	SmallBytes int64

	// LRU states that Small evicts the least recently used block first (A28).
	LRU bool

	// Faulty states that operations may fail, and blocks be missed, at any
	// time. The suite then allows errors wherever it would want success, but
	// still one Result a job, and never wrong bytes.
	Faulty bool

	// MinBytes and MaxBytes bound the size of blocks that the tier takes.
	// Zero means 1 and no limit.
	MinBytes, MaxBytes int64

	// Reopen closes the tier and opens it again on the same storage. Nil
	// leaves out what needs blocks that outlive Close.
	Reopen func(t *testing.T, tier tiers.Tier) tiers.Tier

	// NewFile makes the empty files that blocks move from and to, open for
	// reading and writing; the suite closes them. Nil means memfd_create,
	// which is tmpfs, as the primary tier.
	NewFile func(t *testing.T) *os.File

	// Timeout is the longest that any one job or Close may take. Zero means
	// one minute.
	Timeout time.Duration

	// Seed starts the random numbers. Zero means the environment variable
	// KVFS_TEST_SEED, or if that is not set a new one. It is logged.
	Seed uint64
}

// withDefaults returns o with its zero fields filled.
func (o Options) withDefaults(t *testing.T) Options {
	if o.SmallBlocks == 0 {
		o.SmallBlocks = 8
	}
	if o.SmallBytes == 0 {
		o.SmallBytes = 4096
	}
	if o.MinBytes == 0 {
		o.MinBytes = 1
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 62
	}
	if o.NewFile == nil {
		o.NewFile = newMemFile
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if s := os.Getenv(seedVariable); o.Seed == 0 && s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
		o.Seed = seed
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return o
}

// seedVariable repeats a run: it holds the seed that the run logged.
const seedVariable = "KVFS_TEST_SEED"

// suiteCase is one test of the suite, named as its subtest.
type suiteCase struct {
	name string
	run  func(h *harness)
	// needs reports whether the options give the case what it needs; nil: yes.
	needs func(o Options) bool
}

func needsSmall(o Options) bool  { return o.Small != nil }
func needsLRU(o Options) bool    { return o.Small != nil && o.LRU && !o.Faulty }
func needsReopen(o Options) bool { return o.Reopen != nil }

// suiteCases returns all cases, from the plainest on.
func suiteCases() []suiteCase {
	return slices.Concat(contractCases(), dataCases(), capacityCases(), parallelCases(), closeCases())
}

// Run checks that a tier keeps the contract of tiers.Tier, as subtests of t that
// are named after what they check. open returns an empty tier with room for at
// least 32 MiB; Run closes it. Each case opens its own.
//
// Every job of every case is also held to what holds for all jobs: Done called
// once, not from within Store or Load, with the outcomes in the order of the
// blocks; errors of a known kind; sizes, checksums and bytes right to the last;
// files neither closed nor read past their end, nor kept.
func Run(t *testing.T, open func(t *testing.T) tiers.Tier, opts Options) {
	opts = opts.withDefaults(t)
	t.Logf("%s=%d repeats this run", seedVariable, opts.Seed)
	for _, c := range suiteCases() {
		t.Run(c.name, func(t *testing.T) {
			if c.needs != nil && !c.needs(opts) {
				t.Skip("the options leave this out")
			}
			c.run(newHarness(t, open, opts))
		})
	}
}
