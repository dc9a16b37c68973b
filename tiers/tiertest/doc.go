// Package tiertest holds the common parts of all tier tests: the conformance suites, the reference
// implementation of driver.Tier, and a decorator that injects faults around any tier.
//
//	Run         the suite; a tier's own test calls it with a function that opens the tier
//	RunPrimary  the same for the primary tier
//	Reference   the smallest tier that keeps the whole contract, in memory
//	Faulty      a tier around a tier that fails, delays or hides as a Plan says
//	Plan        which block operations go wrong, and how
//	Clock       the time of injected latency; ManualClock moves only when told
//
// A test of a tier reads:
//
//	func TestConformance(t *testing.T) {
//		open := func(t *testing.T) driver.Tier { return openDisk(t, 64<<20) }
//		tiertest.Run(t, open, tiertest.Options{
//			Small:       func(t *testing.T) driver.Tier { return openDisk(t, 8*4096) },
//			SmallBlocks: 8,
//			SmallBytes:  4096,
//			LRU:         true,
//			Reopen:      reopenDisk,
//			Corrupt:     flipBit,
//		})
//	}
//
// The suite finds abilities beyond driver.Tier (driver.Enumerator, Hosted, Recorder, Statser and
// Syncer) by type assertion. Options give the suite the rest, such as how to make a copy bad. The
// suite leaves out cases for which an option is missing.
//
// A test of the engine orders events without a clock:
//
//	r := tiertest.NewReference(t, tiertest.ReferenceOptions{})
//	release := r.Hold(tiertest.OpStore)
//	... commit a block ...
//	r.AwaitSubmitted(ctx, tiertest.OpStore, 1) // the cascade has begun
//	... look at the engine ...
//	release()
//	r.AwaitDone(ctx, tiertest.OpStore, 1) // Done has returned
//
// Corrupt, Scrub, Fail and Recover make the tier lose blocks, and Reopen replaces storage that
// outlives the process.
//
// Numbers such as A31 in comments are those of the feature list.
package tiertest
