package mount

import (
	"maps"
	"slices"
)

// What the model does when a process or the daemon is killed.

// kill ends a process.
func (m *model) kill(p int) {
	for s := range differSlots {
		key := slotKey{p, s}
		m.touch = append(m.touch, key.String(), "map "+key.String())
		delete(m.maps, key)
	}
	for s := range differSlots {
		key := slotKey{p, s}
		o, ok := m.slots[key]
		delete(m.slots, key)
		if ok && m.files[m.opens[o].file].maker != p {
			m.closed(p, o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		f := m.names[name]
		late := m.files[f].late == p && !m.writers(f, none) &&
			m.pick(2, "whether kvfs has heard of the last close of a writer before that was killed") == 1
		if m.files[f].maker != p && !late {
			continue
		}
		m.about(name)
		m.involved = append(m.involved, f)
		m.note(ruleKilled)
		if m.writers(f, p) {
			m.files[f].maker = 1 - p
		} else {
			delete(m.names, name)
		}
	}
}

// crash ends the daemon.
func (m *model) crash() {
	clear(m.slots)
	clear(m.maps)
	if !m.rules {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		m.about(name)
		f := m.names[name]
		if m.files[f].maker != none || m.files[f].dirty {
			m.note(ruleCrash)
		}
		if !m.plain(name) && m.crashFile(f) == none {
			delete(m.names, name)
		}
	}
}

// crashFile is for a block. One that was changed since its commit is as it was
// committed, or gone. A private one is gone.
func (m *model) crashFile(f int) int {
	file := &m.files[f]
	if file.maker != none {
		return none
	}
	if !file.dirty {
		return f
	}
	n := m.pick(1+len(file.stable), "whether a block that was changed in place outlives the daemon")
	if n == 0 {
		return none
	}
	file.data, file.mtime, file.dirty = file.stable[n-1].data, file.stable[n-1].mtime, false
	return f
}
