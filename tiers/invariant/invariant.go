// Package invariant holds checks that compile away. In builds tagged race or
// invariants, Enabled is true and Mutex runs its check after Lock and before
// Unlock; in a release build Mutex is a sync.Mutex and the checks are dead code.
//
// The idea is gcsfuse's internal/locker.
package invariant

import "fmt"

// Check panics with the message if ok is false, in builds with Enabled. It is
// for bugs of ours only: never for input, disk content or the network.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant: " + fmt.Sprintf(format, args...))
	}
}
