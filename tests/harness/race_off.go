//go:build !race

package harness

// RaceEnabled reports whether the test, and so the daemon, has the race
// detector.
const RaceEnabled = false
