package suite

import (
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Options describes the tier for the suite. The zero value works for a tier with room for 32 MiB.
type Options struct {
	// Small opens an empty tier with room for at least SmallBlocks blocks of SmallBytes bytes each
	// and for fewer than twice as many. Nil leaves out cases that need a full tier.
	Small func(t *testing.T) driver.Tier
	// SmallBlocks is the room of Small in blocks. Zero means 8; at least 2.
	SmallBlocks int
	// SmallBytes is the size of a block for Small. Zero means 4096; at least 1.
	SmallBytes int64

	// LRU states that Small evicts the least recently used block first (A28).
	LRU bool

	// Faulty states that operations may fail, and blocks be missed, at any time. The suite then
	// allows errors wherever it would expect success, but still requires one Result a job and no
	// wrong bytes.
	Faulty bool

	// MinBytes and MaxBytes bound the size of blocks that the tier takes.
	// Zero means 1 and no limit.
	MinBytes, MaxBytes int64

	// MaxKeyBytes is the longest path that the tier takes, of any form: a key of that length is
	// stored, a longer one fails with ErrNameTooLong. Zero means unknown: a key of block.MaxPath
	// bytes may be stored or fail in this way.
	MaxKeyBytes int

	// Budgeted opens an empty tier with room for 128 blocks of SmallBytes bytes and a write budget
	// for at least one and fewer than 64 of them. Nil leaves out cases that need a budget.
	Budgeted func(t *testing.T) driver.Tier

	// Reopen closes the tier and opens it again on the same storage. Nil leaves out cases with
	// blocks that outlive Close.
	Reopen func(t *testing.T, tier driver.Tier) driver.Tier

	// Crash opens a tier with what would survive a power cut of the old one, which is not closed,
	// and then ends the old one. Nil leaves out the cases that need that.
	Crash func(t *testing.T, tier driver.Tier) driver.Tier

	// Corrupt flips a bit in the tier's copy of a block, without the tier. Nil leaves out the cases
	// that need a bad copy.
	Corrupt func(t *testing.T, tier driver.Tier, key block.Key)

	// Offline breaks the device of the tier, so that all its blocks are gone. Nil leaves out the
	// cases that need that.
	Offline func(t *testing.T, tier driver.Tier)

	// NewFile makes the empty files that blocks move from and to, open for reading and writing. The
	// suite closes them. Nil means memfd_create, which is tmpfs, as in the primary tier.
	NewFile func(t *testing.T) *os.File

	// CommitTimes states that Find of a driver.Finder may tell the version as the time of a block, and the end of its
	// life up to a second late.
	CommitTimes bool

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

// seedVariable holds the logged seed of a run, to repeat that run.
const seedVariable = "KVFS_TEST_SEED"

// suiteCase is one test of the suite, named as its subtest.
type suiteCase struct {
	name string
	run  func(h *harness)
	// needs reports whether the options allow the case; nil: they do.
	needs func(o Options) bool
}

// ability returns an optional interface of the tier.
func ability[T any](tier driver.Tier) (T, bool) {
	able, ok := tier.(T)
	return able, ok
}

// mustHave returns an optional interface of the tier, or skips the case.
func mustHave[T any](h *harness) T {
	h.t.Helper()
	able, ok := ability[T](h.tier)
	if !ok {
		h.t.Skipf("the tier is no %v", reflect.TypeFor[T]())
	}
	return able
}

func needsSmall(o Options) bool   { return o.Small != nil }
func needsLRU(o Options) bool     { return o.Small != nil && o.LRU && !o.Faulty }
func needsReopen(o Options) bool  { return o.Reopen != nil }
func needsCrash(o Options) bool   { return o.Crash != nil }
func needsBudget(o Options) bool  { return o.Budgeted != nil }
func needsCorrupt(o Options) bool { return o.Corrupt != nil }
func needsOffline(o Options) bool { return o.Offline != nil && !o.Faulty }

// needsTrue are the needs of cases that prove nothing about a faulty tier.
func needsTrue(o Options) bool      { return !o.Faulty }
func needsTrueSmall(o Options) bool { return o.Small != nil && !o.Faulty }

// suiteCases returns all cases, the simplest first.
func suiteCases() []suiteCase {
	return slices.Concat(contractCases(), dataCases(), versionCases(), recordCases(), findCases(), capacityCases(),
		hostCases(), parallelCases(), syncCases(), closeCases())
}

// Run checks that a tier keeps the contract of driver.Tier, as subtests of t named after what they
// check. open returns an empty tier with room for at least 32 MiB; Run closes it. Each case opens
// its own.
//
// Run also checks the rules for all jobs on every job: Done is called once, not from within Store
// or Load, with the outcomes in the order of the blocks; errors are of a known kind; sizes,
// checksums and all bytes are right; files are neither closed nor read past their end, nor kept.
func Run(t *testing.T, open func(t *testing.T) driver.Tier, opts Options) {
	opts = opts.withDefaults(t)
	t.Logf("%s=%d repeats this run", seedVariable, opts.Seed)
	for _, c := range suiteCases() {
		if c.needs != nil && !c.needs(opts) {
			continue // the options leave it out
		}
		t.Run(c.name, func(t *testing.T) { c.run(newHarness(t, open, opts)) })
	}
}
