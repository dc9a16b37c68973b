//go:build race || invariants

package invariant

import "sync"

// Enabled reports whether checks run in this build.
const Enabled = true

// Mutex is a mutual exclusion lock that runs Check while held.
type Mutex struct {
	mu    sync.Mutex
	check func()
}

// SetCheck installs the function that Lock and Unlock run under the lock. Call
// it before the first Lock.
func (m *Mutex) SetCheck(f func()) { m.check = f }

// Lock locks m, then runs the check.
func (m *Mutex) Lock() {
	m.mu.Lock()
	if m.check != nil {
		m.check()
	}
}

// Unlock runs the check, then unlocks m.
func (m *Mutex) Unlock() {
	if m.check != nil {
		m.check()
	}
	m.mu.Unlock()
}
