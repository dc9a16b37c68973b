package state

import (
	"time"

	"github.com/kvfs/kvfs/tiers/index"
)

// storeSoon is how long before the begin of a store a look-up of its name still belongs to the store. Engines look a
// block up and make its file within a millisecond; to compute a block takes longer.
const storeSoon = 100 * time.Millisecond

// misses counts the look-ups of files that found nothing. A look-up is no miss if it belongs to a store: programs and
// the kernel look a name up before they make it. Only the begin of the store tells, so the look-ups of the last
// storeSoon are undecided: they do not count yet, and a store takes its own away.
//
// A set of 4 look-ups is full when many names are missed at the same time. Then the oldest counts at once.
type misses struct {
	count, taken uint64 // count includes the undecided
	told         uint64 // the most that total has returned
	undecided    [missSets][4]undecided
}

const missSets = 1 << 10 // 128 KiB

// undecided are look-ups of one name by one process that were at most storeSoon apart.
type undecided struct {
	name uint64 // as missName; n 0: none
	by   Process
	n    uint32
	at   int64 // the first
}

// missName tells names apart. Two names in one directory share one with a probability of 2^-32.
func missName(parent index.ID, hash uint32) uint64 { return uint64(parent)<<32 | uint64(hash) }

// add counts a look-up by a process.
func (m *misses) add(name uint64, by Process, now int64) {
	m.count++
	set := &m.undecided[name%missSets]
	oldest := &set[0]
	for i := range set {
		u := &set[i]
		if u.name == name && u.by == by && u.n > 0 && now-u.at <= int64(storeSoon) {
			u.n++
			return
		}
		if u.at < oldest.at {
			oldest = u
		}
	}
	*oldest = undecided{name, by, 1, now}
}

// Add counts names that a request asked for. They are never part of a store.
func (m *misses) Add(n uint64) { m.count += n }

// stored takes back the look-ups of a name by a process that stores it. The store began at a time.
func (m *misses) stored(name uint64, by Process, begin int64) {
	set := &m.undecided[name%missSets]
	for i := range set {
		if u := &set[i]; u.n > 0 && u.name == name && u.by == by && begin-u.at <= int64(storeSoon) {
			m.taken += uint64(u.n)
			*u = undecided{}
		}
	}
}

// total returns the number of misses, without those that are undecided at the time now. It never falls, although a store
// that took long to begin may take away look-ups that counted already.
func (m *misses) total(now int64) uint64 {
	n := m.count - m.taken
	for i := range m.undecided {
		for j := range m.undecided[i] {
			if u := &m.undecided[i][j]; u.n > 0 && now-u.at <= int64(storeSoon) {
				n -= uint64(u.n)
			}
		}
	}
	m.told = max(m.told, n)
	return m.told
}

// MissedLocked counts a look-up by a process that found no file.
func (st *State) MissedLocked(parent index.ID, name string, by Process) {
	ix := st.Mu.Ix
	if parent != index.Root && (!ix.Valid(parent) || !ix.Linked(parent)) {
		return // the directory is gone
	}
	now, hash := st.Now(), st.Mu.Ix.HashOf(parent, name)
	st.Mu.Misses.add(missName(parent, hash), by, now)
	st.Mu.Reuse.MissedLocked(parent, name, hash, now)
}

// StoresLocked notes that a process makes a name, or tries to, since begin: its look-ups of the name just before and since
// were no misses.
func (st *State) StoresLocked(parent index.ID, name string, by Process, begin int64) {
	st.Mu.Misses.stored(missName(parent, st.Mu.Ix.HashOf(parent, name)), by, begin)
}
