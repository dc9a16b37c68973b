package mount

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What names mean: the rules of the model.

func (k slotKey) String() string { return fmt.Sprintf("slot %d.%d", k.p, k.slot) }

// see returns the file that a name means to p, or none.
func (m *model) see(p int, name string) int {
	m.about(name)
	f := m.name(name)
	if f == none {
		return none
	}
	m.involved = append(m.involved, f)
	if m.hides(p, f) {
		m.note(rulePrivate)
		return none
	}
	return f
}

// hides reports whether f is private, and not to p.
func (m *model) hides(p, f int) bool {
	file := m.files[f]
	return file.maker != none && (file.moved || file.maker != p && !(p < differWorkers && m.opened(f, p)))
}

func (m *model) open(op differOp) syscall.Errno {
	key := slotKey{op.P, op.S}
	m.touch = append(m.touch, key.String())
	if _, used := m.slots[key]; used {
		return unix.EMFILE
	}
	m.about(op.A)
	if errno := m.parent(op.A); errno != 0 {
		return errno
	}
	f := m.see(op.P, op.A)
	there := m.name(op.A)
	create, truncate := op.Flags&unix.O_CREAT != 0, op.Flags&unix.O_TRUNC != 0
	switch {
	case op.Flags&unix.O_EXCL != 0 && there != none:
		return unix.EEXIST
	case f != none && truncate:
		f = m.openTruncate(op.P, op.A, f)
	case f != none:
	case !create:
		return unix.ENOENT
	case there != none && !truncate:
		f = there // it joins
	default:
		f = m.create(op.P, op.A, op.Mode&^0o022)
		if m.direct && m.temporary(op.A) {
			m.files[f].silent = op.P
		}
	}
	m.involved = append(m.involved, f)
	m.slots[key] = len(m.opens)
	m.opens = append(m.opens, modelOpen{p: op.P, file: f, flags: op.Flags})
	return 0
}

// create makes a file, which has the name from then on. Under a plain name it is everybody's.
func (m *model) create(p int, name string, mode uint32) int {
	f := m.newFile(modelFile{mode: unix.S_IFREG | mode, mtime: differRecent, maker: none})
	if !m.plain(name) {
		m.files[f].maker = p
	}
	m.names[name] = f
	return f
}

// openTruncate is O_TRUNC of the file that a name means to p.
func (m *model) openTruncate(p int, name string, f int) int {
	file := m.files[f]
	switch {
	case m.temporary(name) && m.busy(f, p):
		m.note(ruleTemporary)
	case m.plain(name), file.maker != none:
		m.setData(f, nil)
		return f
	default:
		m.note(rulePrivate)
	}
	return m.create(p, name, file.mode&^unix.S_IFMT)
}

// busy reports whether another process than p has f open for writing.
func (m *model) busy(f, p int) bool {
	if m.writers(f, p) {
		return true
	}
	q := m.files[f].silent
	return q != none && q != p && m.hasMapped(f, q) && m.pick(2, "whether a mapping of a file that was made under a temporary name is an open file") == 1
}

// hasMapped reports whether p has f mapped.
func (m *model) hasMapped(f, p int) bool {
	for key, g := range m.maps {
		if key.p == p && f == g {
			return true
		}
	}
	return false
}

// opened reports whether p has f open for writing.
func (m *model) opened(f, p int) bool {
	for key, o := range m.slots {
		if key.p == p && m.opens[o].file == f && m.opens[o].writes() {
			return true
		}
	}
	return false
}

// only reports whether f is open for writing by o alone.
func (m *model) only(f, o int) bool {
	for _, x := range m.slots {
		if x != o && m.opens[x].file == f && m.opens[x].writes() {
			return false
		}
	}
	return true
}

// mapped reports whether a process has f mapped.
func (m *model) mapped(f int) bool { return slices.Contains(slices.Collect(maps.Values(m.maps)), f) }

// setData changes what a file has.
func (m *model) setData(f int, data []byte) {
	file := &m.files[f]
	file.data, file.mtime, file.dirty = data, differRecent, true
}

func (m *model) close(p, slot int) syscall.Errno {
	key := slotKey{p, slot}
	m.touch = append(m.touch, key.String())
	o, ok := m.slots[key]
	if !ok {
		return unix.EBADF
	}
	delete(m.slots, key)
	m.involved = append(m.involved, m.opens[o].file)
	m.closed(p, o)
	return 0
}

// closed commits what o had open, if that was the last descriptor of its maker.
func (m *model) closed(p, o int) {
	f := m.opens[o].file
	file := &m.files[f]
	_, named := m.nameOf(f)
	switch last := !m.writers(f, none); {
	case !m.opens[o].writes():
	case file.maker == none:
		dup := m.rules && !last && m.only(f, o)
		if file.dirty && (last || dup && m.pick(2, "whether the close of a duplicate commits what was changed in place") == 1) {
			file.keep()
		}
	case file.maker != p || !named || m.opened(f, p):
	case file.silent == p && m.hasMapped(f, p) && m.pick(2, "whether a mapping of a file that was made under a temporary name is an open file") == 1:
	default:
		m.settleFile(f)
		if file.silent == p {
			file.late = p
		}
	}
}

// settleFile makes a file everybody's.
func (m *model) settleFile(f int) {
	m.files[f].maker, m.files[f].moved = none, false
	m.files[f].keep()
}

func (m *model) unlink(op differOp) syscall.Errno {
	if errno := m.parent(op.A); errno != 0 {
		m.about(op.A)
		return errno
	}
	f := m.see(op.P, op.A)
	if f == none {
		return unix.ENOENT
	}
	delete(m.names, op.A)
	return 0
}

func (m *model) rename(op differOp) syscall.Errno {
	if _, dir := m.dirs[op.A]; dir {
		return m.renameDir(op)
	}
	m.about(op.A)
	m.about(op.B)
	if m.parent(op.A) != 0 || m.parent(op.B) != 0 {
		return unix.ENOENT
	}
	f := m.see(op.P, op.A)
	if g := m.name(op.B); g != none { // what comes of it is another thing if this fails
		m.involved = append(m.involved, g)
	}
	if f == none {
		return unix.ENOENT
	}
	if op.A == op.B {
		return 0
	}
	delete(m.names, op.A)
	m.names[op.B] = f
	file := &m.files[f]
	private := file.maker != none
	switch {
	case m.rules && !m.plain(op.B) && (private || m.plain(op.A)) && m.busy(f, op.P):
		m.note(rulePrivate)
		file.maker, file.moved = 1-op.P, true
	case private || m.plain(op.A) || !file.dirty:
		m.settleFile(f)
	default:
		file.stable = append(slices.Clone(file.stable), modelStable{file.data, file.mtime})
	}
	return 0
}

func (m *model) below(dir string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		if path.Dir(name) == dir {
			names = append(names, name)
		}
	}
	return names
}

// clear returns ENOTEMPTY if p sees something in a directory. What it does not
// see goes.
func (m *model) clear(p int, dir string) syscall.Errno {
	m.about(dir)
	m.looked = append(m.looked, dir)
	for _, name := range m.below(dir) {
		if m.see(p, name) != none {
			return unix.ENOTEMPTY
		}
	}
	for _, name := range m.below(dir) {
		delete(m.names, name)
	}
	return 0
}

func (m *model) renameDir(op differOp) syscall.Errno {
	m.about(op.A)
	m.about(op.B)
	mode := m.dirs[op.A]
	if op.A == op.B {
		return 0
	}
	if _, exists := m.dirs[op.B]; exists {
		if errno := m.clear(op.P, op.B); errno != 0 {
			return errno
		}
	}
	delete(m.dirs, op.A)
	m.dirs[op.B] = mode
	for _, name := range m.below(op.A) {
		to := op.B + strings.TrimPrefix(name, op.A)
		m.about(name)
		m.about(to)
		m.names[to] = m.names[name]
		delete(m.names, name)
	}
	return 0
}

func (m *model) mkdir(op differOp) syscall.Errno {
	m.about(op.A)
	if _, exists := m.dirs[op.A]; exists {
		return unix.EEXIST
	}
	m.dirs[op.A] = op.Mode &^ 0o022
	return 0
}

func (m *model) rmdir(op differOp) syscall.Errno {
	m.about(op.A)
	if _, exists := m.dirs[op.A]; !exists {
		return unix.ENOENT
	}
	errno := m.clear(op.P, op.A)
	if errno == 0 {
		delete(m.dirs, op.A)
	}
	return errno
}
