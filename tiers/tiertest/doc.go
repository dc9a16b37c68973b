// Package tiertest holds what tests of and with tiers share: the reference implementation of
// driver.Tier, which fails on request. The conformance suites are in tiers/tiertest/suite.
//
//	Reference  the smallest tier that keeps the whole contract, in memory
//	Finding    a Reference that is a driver.Finder
//	Plan       which block operations go wrong, and how
//	Files      a driver.Primary of anonymous files
//	RunSteps   plays random steps, and shows the few of a sequence that fails
//	Clock      the time of injected latency
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
