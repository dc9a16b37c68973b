package mount

import (
	"maps"
	"slices"
)

// What the model does when a process or the daemon is killed.

// kill ends a process.
func (m *model) kill(p int) {
	open := map[int]bool{}
	for s := range differSlots {
		key := slotKey{p, s}
		m.touch = append(m.touch, key.String(), "map "+key.String())
		delete(m.maps, key)
		o, ok := m.slots[key]
		if !ok {
			continue
		}
		delete(m.slots, key)
		f := m.opens[o].file
		open[f] = true
		if m.files[f].back != "" && m.pick(2, "whether an empty file outlives the killed writer of its first byte") == 1 {
			m.files[f].data = nil
			m.comeBack(f)
		}
		if m.files[f].maker != p {
			m.closed(p, o)
		}
		if file := &m.files[f]; file.cut > 0 && len(file.data) > file.cut && !m.writers(f, none) {
			m.involved = append(m.involved, f)
			m.note(ruleSynced)
			if m.pick(2, "whether what a killed writer added to a file after it synced it stays") == 1 {
				file.data = file.data[:file.cut]
				file.stable = []modelStable{{file.data, file.mtime}}
			}
		}
	}
	for f := range m.files {
		m.killUnheard(p, f)
		if m.files[f].owner == p {
			m.files[f].owner = none
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		e := m.name(name)
		v := e.own[p]
		if v == none {
			continue
		}
		m.about(name)
		m.involved = append(m.involved, v)
		e.own[p] = none
		if m.files[v].own {
			e = m.killOwn(e, p, v, open[v])
		} else {
			m.note(ruleKilled)
			e = m.killVersion(e, p, v)
		}
		m.setName(name, e)
	}
}

// killUnheard changes f for the death of a process that has closed it a moment ago.
func (m *model) killUnheard(p, f int) {
	file := &m.files[f]
	name, ok := m.nameOf(f, none)
	if !file.unheard[p] || !ok || m.writers(f, none) {
		return
	}
	file.unheard[p] = false
	m.about(name)
	m.involved = append(m.involved, f)
	m.note(ruleKilled)
	if m.pick(2, "whether kvfs has heard of the last close of a writer before that was killed") == 0 {
		return
	}
	e := m.name(name)
	if e.file = file.instead; e.file == f {
		file.data, file.mtime = nil, differRecent
		file.keep()
	}
	m.setName(name, e)
}

// killOwn returns e after the death of a process that had a temporary file of its own there.
func (m *model) killOwn(e modelName, p, v int, open bool) modelName {
	m.note(ruleTemporary)
	other := m.other(p, e)
	switch {
	case e.file == v && other != none && !m.writers(other, p):
		if m.pick(2, "who has a temporary name when the first one dies last") == 1 {
			e.file = other
		}
	case e.file == v && open && e.left != none:
		if m.pick(2, "who has a temporary name when the first one dies last") == 1 {
			e.file, e.left = e.left, none
			m.involved = append(m.involved, e.file)
		}
	case e.file != v && e.file != none && !open:
		if m.pick(2, "how soon a closed temporary file without a name is gone after its process has died") == 1 {
			e.left = v
		}
	case e.file != v && open && (e.file == none || !m.writers(e.file, p)):
		if m.pick(2, "whether a temporary file gets its name by the death of its writer") == 1 {
			e.file = v
		}
	}
	m.files[v].maker, m.files[v].own = none, false
	return e
}

// killVersion returns e after the death of a process that had a version there.
func (m *model) killVersion(e modelName, p, v int) modelName {
	file := &m.files[v]
	switch {
	case file.synced != nil:
		switch m.pick(3, "whether a killed writer commits what it wrote after it synced") {
		case 0:
			file.data = file.synced
		case 1:
			file.data = file.data[:min(len(file.synced), len(file.data))] // what it changed, but not what it appended
		}
	case file.joined[1-p] && m.writers(v, p) && e.own[1-p] == none &&
		m.pick(2, "whether the second writer of a new file goes on when the first one is killed") == 0:
		file.maker, e.own[1-p] = 1-p, v
		return e
	case len(file.data) == 0 && e.file == none:
		if m.pick(2, "whether an empty file outlives its killed writer") == 0 {
			return e
		}
	case file.ghost:
		if m.pick(2, "whether an empty file outlives the killed writer of its first byte") == 1 {
			e.file = m.shade(v)
		}
		return e
	default:
		return e
	}
	m.settleFile(v)
	e.file = v
	return e
}

// crash ends the daemon.
func (m *model) crash() {
	if m.rules {
		for f := range m.files {
			if file := &m.files[f]; file.back != "" && m.held(f) && m.pick(2, "whether a version outlives the daemon") == 1 {
				file.data = nil
				m.comeBack(f)
			}
		}
	}
	clear(m.slots)
	clear(m.maps)
	if !m.rules {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		m.about(name)
		e := m.name(name)
		if e != (modelName{file: e.file, own: noName.own, left: none}) || e.file != none && m.files[e.file].dirty {
			m.note(ruleCrash)
		}
		if m.plain(name) {
			e = m.crashPlain(e)
		} else {
			e = m.crashBlock(e)
		}
		m.setName(name, e)
	}
}

func (m *model) crashPlain(e modelName) modelName {
	e.left = none
	for p, v := range e.own {
		e.own[p] = none
		if v != none && v != e.file && m.pick(2, "which temporary file outlives the daemon") == 1 {
			e.file = v
		}
	}
	return e
}

func (m *model) crashBlock(e modelName) modelName {
	if e.file != none {
		e.file = m.crashFile(e.file)
	}
	for p, v := range e.own {
		e.own[p] = none
		if v == none {
			continue
		}
		file := &m.files[v]
		if m.disk && file.ghost && len(file.stable) > 0 && m.pick(2, "whether a block that was emptied in place is back from the SSD") == 1 {
			old := file.stable[m.pick(len(file.stable), "as it was when")]
			e.file = m.newFile(modelFile{data: old.data, mode: file.mode, mtime: old.mtime, maker: none, owner: none, stable: file.stable})
			continue
		}
		outlives := len(file.data) == 0 || file.ghost || file.synced != nil
		switch {
		case !outlives, !(m.disk && file.synced != nil && !file.late) && m.pick(2, "whether a version outlives the daemon") == 0:
		case file.synced != nil && m.pick(2, "whether a version outlives the daemon with what came after the sync") == 0:
			file.data, e.file = file.synced, v
		case file.synced != nil || len(file.data) == 0:
			e.file = v
		default:
			e.file = m.shade(v)
		}
	}
	return e
}

// crashFile is for a committed file. One that was changed since is as it was
// committed, or gone.
func (m *model) crashFile(f int) int {
	file := &m.files[f]
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
