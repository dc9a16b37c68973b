// Package suite is the conformance suites that every tier passes.
//
//	Run         the suite; a tier's own test calls it with a function that opens the tier
//	RunPrimary  the same for the primary tier
//
// A test of a tier reads:
//
//	func TestConformance(t *testing.T) {
//		open := func(t *testing.T) driver.Tier { return openDisk(t, 64<<20) }
//		suite.Run(t, open, suite.Options{
//			Small:       func(t *testing.T) driver.Tier { return openDisk(t, 8*4096) },
//			SmallBlocks: 8,
//			SmallBytes:  4096,
//			LRU:         true,
//			Reopen:      reopenDisk,
//			Corrupt:     flipBit,
//		})
//	}
//
// The suite finds abilities beyond driver.Tier (driver.Enumerator, Finder, Hosted, Recorder,
// Statser and Syncer) by type assertion. Options give the suite the rest, such as how to make a copy bad. The
// suite leaves out cases for which an option is missing.
//
// The suite knows no tier. Its own tests run it on tiertest.Reference, with faults and without.
//
// Numbers such as A31 in comments are those of the feature list.
package suite
