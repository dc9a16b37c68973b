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
	e := m.name(name)
	f := e.file
	if p < differWorkers && e.own[p] != none {
		f = e.own[p]
	} else {
		m.noteOthers(p, e)
		if f == none {
			f = m.seeOther(p, e)
		}
	}
	if f != none {
		m.involved = append(m.involved, f)
	}
	return f
}

// other returns a version of another process, or none.
func (m *model) other(p int, e modelName) int {
	for q, v := range e.own {
		if q != p && v != none {
			return v
		}
	}
	return none
}

// noteOthers notes the rules by which p may not see the writes of other processes.
func (m *model) noteOthers(p int, e modelName) {
	for q, v := range e.own {
		if q == p || v == none {
			continue
		}
		switch f := m.files[v]; {
		case f.own:
			m.note(ruleTemporary)
		case len(f.data) == 0 && e.file == none:
			m.note(ruleEmpty)
		case f.ghost:
			m.note(ruleFirstByte)
		default:
			m.note(ruleHidden)
		}
		m.involved = append(m.involved, v)
	}
}

// maySee reports whether p may see something of version v of another process.
func (m *model) maySee(p, v int) bool {
	f := m.files[v]
	return f.own || len(f.data) == 0 || f.ghost || p < differWorkers && f.joined[p]
}

// seeOther returns a version of another process that p may see, under a name without a file for all, or none.
func (m *model) seeOther(p int, e modelName) int {
	for q, v := range e.own {
		if q == p || v == none || !m.maySee(p, v) {
			continue
		}
		switch f := m.files[v]; {
		case f.own:
			if m.pick(2, "whether a temporary file has its name when that of the other is gone") == 1 {
				return v
			}
		case len(f.data) == 0:
			if m.pick(2, "whether a new empty file is seen") == 1 {
				return v
			}
		case p < differWorkers && f.joined[p]:
			switch m.pick(3, "what one sees of a new file that one has written as well") {
			case 1:
				return v
			case 2:
				return m.shade(v)
			}
		default:
			if m.pick(2, "whether an empty file is seen that gets bytes") == 1 {
				return m.shade(v)
			}
		}
	}
	return none
}

// shade returns an empty file that stands for a version.
func (m *model) shade(v int) int {
	file := m.files[v]
	mtime := file.mtime
	if file.ghost && file.before != mtime && m.pick(2, "whether an empty file that gets bytes has the time that it had before") == 1 {
		mtime = file.before
	}
	return m.newFile(modelFile{mode: file.mode, mtime: mtime, maker: none, owner: none})
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
	if op.Flags&unix.O_EXCL != 0 && !m.name(op.A).void() {
		m.noteOthers(op.P, m.name(op.A))
		return unix.EEXIST
	}
	n := len(m.files)
	f := m.openFile(op)
	if f == none {
		return unix.ENOENT
	}
	m.involved = append(m.involved, f)
	m.slots[key] = len(m.opens)
	silent := m.direct && m.temporary(op.A) && f >= n && !m.files[f].own
	m.opens = append(m.opens, modelOpen{p: op.P, file: f, flags: op.Flags, silent: silent})
	return 0
}

// openFile returns the file that is opened, or none.
func (m *model) openFile(op differOp) int {
	e := m.name(op.A)
	create, truncate := op.Flags&unix.O_CREAT != 0, op.Flags&unix.O_TRUNC != 0
	v := m.other(op.P, e)
	var f int
	switch {
	case e.own[op.P] != none || e.file != none || v == none || op.Flags&unix.O_ACCMODE == unix.O_RDONLY || m.files[v].own:
		f = m.see(op.P, op.A)
	default:
		m.noteOthers(op.P, e)
		return m.openOther(op, v, create, truncate)
	}
	switch {
	case f != none && truncate:
		return m.openTruncate(op.P, op.A, f)
	case f == none && create:
		return m.create(op)
	}
	return f
}

// openOther opens, for writing, a name of which only another process has a
// version.
func (m *model) openOther(op differOp, v int, create, truncate bool) int {
	const which = "whether a new file of another process can be opened"
	f := &m.files[v]
	switch {
	case !truncate && (create || m.pick(2, which) == 1):
		f.joined[op.P] = true // lines that two processes append are not lost
		return v
	case !truncate:
		return none
	case len(f.data) == 0 || f.joined[op.P]:
		if m.pick(2, "whether O_TRUNC shares the empty new file of another process") == 1 {
			f.joined[op.P] = true
			m.setData(op.P, v, nil)
			return v
		}
	}
	if create || m.pick(2, which) == 1 {
		return m.create(op)
	}
	return none
}

// create makes a file. Under a plain name it is everybody's.
func (m *model) create(op differOp) int {
	f := m.newFile(modelFile{mode: unix.S_IFREG | op.Mode&^0o022, mtime: differRecent, maker: none, owner: op.P})
	e := m.name(op.A)
	if m.plain(op.A) {
		e.file = f
	} else {
		m.files[f].maker, e.own[op.P] = op.P, f
	}
	m.setName(op.A, e)
	return f
}

// openTruncate is O_TRUNC of the file that a name means to p.
func (m *model) openTruncate(p int, name string, f int) int {
	e, file := m.name(name), m.files[f]
	v := modelFile{mode: file.mode, mtime: differRecent, maker: p, owner: p}
	switch {
	case m.temporary(name) && m.writers(f, p) &&
		(!m.opened(f, p) || m.pick(2, "whether O_TRUNC of a temporary file that one writes with another process makes one of one's own") == 1):
		m.note(ruleTemporary)
		if q := 1 - p; e.own[q] == none { // the first one keeps what it has
			e.own[q] = f
			m.files[f].maker, m.files[f].own = q, true
		}
		v.own = true
	case m.plain(name), len(file.data) == 0,
		file.maker == p && m.pick(2, "whether O_TRUNC of one's own new version makes another one") == 0:
		if m.temporary(name) {
			m.files[f].owner = p
		}
		m.setData(p, f, nil)
		return f
	default:
		if m.held(f) {
			m.note(ruleHidden)
		}
	}
	e.own[p] = m.newFile(v)
	m.setName(name, e)
	return e.own[p]
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

// held reports whether a process has f open or mapped.
func (m *model) held(f int) bool {
	for _, o := range m.slots {
		if m.opens[o].file == f {
			return true
		}
	}
	return m.mapped(f)
}

// mapped reports whether a process has f mapped.
func (m *model) mapped(f int) bool { return slices.Contains(slices.Collect(maps.Values(m.maps)), f) }

// comeBack gives f the name that its first byte took from it.
func (m *model) comeBack(f int) {
	file := &m.files[f]
	m.about(file.back)
	e := m.name(file.back)
	e.file = f
	m.setName(file.back, e)
	file.back = ""
	file.keep()
}

// setData changes what a file has. The first byte makes a version of it.
func (m *model) setData(p, f int, data []byte) {
	file := &m.files[f]
	first := len(file.data) == 0 && len(data) > 0
	if !file.dirty {
		file.before = file.mtime
	}
	if len(data) < len(file.synced) {
		file.synced = nil
	}
	file.data, file.mtime, file.dirty = data, differRecent, true
	if q := file.maker; first && q != none && q != p {
		m.firstOfOther(p, q, f)
	}
	if !m.rules || !first || file.maker != none {
		return
	}
	name, ok := m.nameOf(f, none)
	e := m.name(name)
	if !ok || m.plain(name) {
		return
	}
	if e.own[p] != none {
		if m.pick(2, "whether the first byte hides a file of whose name the writer has another version") == 1 {
			e.file, file.back = none, name
			m.setName(name, e)
		}
		return
	}
	maker := p
	for q := range e.own {
		if q != p && m.direct && m.opened(f, q) && e.own[q] == none &&
			m.pick(2, "whose the first byte is, which the kernel wrote by itself, of those that have an empty file open") == 1 {
			maker = q
		}
	}
	e.file, e.own[maker] = none, f
	file.maker, file.ghost = maker, true
	for _, o := range m.slots {
		if o := m.opens[o]; o.file == f && o.writes() {
			file.joined[o.p] = true
		}
	}
	m.setName(name, e)
}

// firstOfOther is the first byte that p writes in the new file of q.
func (m *model) firstOfOther(p, q, f int) {
	name, ok := m.nameOf(f, q)
	e := m.name(name)
	if !ok || m.files[f].own || e.own[p] != none || m.pick(2, "whose a new file is: its maker's, or of who writes the first byte") == 0 {
		return
	}
	e.own[p], e.own[q] = f, none
	m.files[f].maker, m.files[f].joined[q] = p, true
	m.setName(name, e)
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

// closed commits the version that o had open, if that was the last descriptor
// of its maker.
func (m *model) closed(p, o int) {
	f := m.opens[o].file
	defer func() {
		if name, ok := m.nameOf(f, none); ok && !m.temporary(name) && !m.writers(f, none) {
			m.files[f].owner = none
		}
	}()
	if file := &m.files[f]; file.maker != p {
		last := !m.writers(f, none)
		if file.back != "" && m.pick(2, "which of the two versions that a process has of a name is closed last") == 1 {
			m.comeBack(f)
		}
		dup := m.rules && !last && m.opens[o].writes() && m.only(f, o)
		if file.dirty && (last || dup && m.pick(2, "whether the close of a duplicate commits what was changed in place") == 1) {
			file.keep()
		}
		return
	}
	more, dup := false, false
	for key, x := range m.slots {
		if key.p != p || m.opens[x].file != f {
			continue
		}
		if x != o && m.opens[x].writes() {
			return
		}
		more, dup = true, dup || x == o
	}
	name, ok := m.nameOf(f, p)
	switch {
	case !ok:
		m.note(ruleRemoved)
	case m.files[f].own:
		if !dup && m.opens[o].writes() {
			m.takeName(name, f, p)
		}
	case more && m.pick(2, "whether the close of one of several descriptors commits") == 0:
	default:
		instead := m.name(name).file
		if m.files[f].ghost {
			instead = f
		}
		m.commit(name, f, p)
		m.files[f].unheard[p], m.files[f].instead = m.opens[o].silent, instead
	}
}

// takeName gives a temporary name to p's own file, unless another process has
// the one that has it open for writing.
func (m *model) takeName(name string, f, p int) {
	m.about(name)
	e := m.name(name)
	if e.file != none && m.writers(e.file, p) {
		return
	}
	e.file = f
	m.setName(name, e)
}

// commit makes p's version everybody's.
func (m *model) commit(name string, f, p int) {
	m.about(name)
	e := m.name(name)
	e.file, e.own[p] = f, none
	m.settleFile(f)
	for q, v := range e.own {
		if v == none {
			continue
		}
		m.note(ruleHidden)
		if m.pick(2, "which of two versions has the name: the last one committed, or the first") == 1 {
			e.own[q] = none
		}
	}
	m.setName(name, e)
}

// settleFile makes a version everybody's.
func (m *model) settleFile(f int) {
	file := &m.files[f]
	file.maker, file.own, file.ghost, file.synced = none, false, false, nil
	file.keep()
}

// remove takes away a name that means f to p. A rename of a temporary file leaves
// another process its own.
func (m *model) remove(p int, name string, f int, rename bool) {
	m.about(name)
	e, rest := m.name(name), noName
	if rename {
		rest.left = e.left
	}
	for q, v := range e.own {
		if q == p || v == none || v == f {
			continue
		}
		m.note(ruleRemoved)
		m.involved = append(m.involved, v)
		others := e.file != none && e.own[p] == none && !m.files[v].own
		keeps := rename && m.files[f].own && m.files[v].own
		if keeps || !others && m.pick(2, "whether a version outlives the unlink or rename of another one") == 0 {
			rest.own[q] = v
		}
	}
	if v := e.file; m.files[f].own && v != none && v != f && m.pick(2, "whether a temporary file stays that its writer has closed") == 1 {
		rest.file = v
	}
	m.setName(name, rest)
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
	m.remove(op.P, op.A, f, false)
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
	e := m.name(op.B)
	for _, v := range append(e.own[:], e.file) { // what comes of them is another thing if this fails
		if v != none {
			m.involved = append(m.involved, v)
		}
	}
	if f == none {
		return unix.ENOENT
	}
	if op.A == op.B {
		return 0
	}
	m.remove(op.P, op.A, f, true)
	m.files[f].unheard = [differWorkers]bool{}
	if m.postpones(op.P, f, op.A, op.B) {
		m.note(ruleHidden)
		file := &m.files[f]
		file.maker, file.own, file.late, e.own[file.owner] = file.owner, false, true, f
		m.setName(op.B, e)
		return 0
	}
	if m.other(none, e) != none {
		m.note(ruleRemoved)
	}
	if file := &m.files[f]; file.maker != none || m.plain(op.A) || !file.dirty {
		m.settleFile(f)
	} else {
		file.stable = append(slices.Clone(file.stable), modelStable{file.data, file.mtime})
	}
	m.setName(op.B, modelName{file: f, own: noName.own, left: none})
	return 0
}

// postpones reports whether the rename of a temporary file by p to the name of a block leaves the commit to
// its owner, which still writes it.
func (m *model) postpones(p, f int, from, to string) bool {
	q := m.files[f].owner
	return m.rules && m.plain(from) && !m.plain(to) && q != none && q != p && m.opened(f, q) && !m.opened(f, p)
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
// see may go.
func (m *model) clear(p int, dir string) syscall.Errno {
	m.about(dir)
	m.looked = append(m.looked, dir)
	hidden := false
	for _, name := range m.below(dir) {
		m.about(name)
		e := m.name(name)
		if e.file != none || e.own[p] != none {
			return unix.ENOTEMPTY
		}
		m.noteOthers(p, e)
		hidden = true
	}
	if hidden && m.pick(2, "whether a directory of hidden files counts as empty") == 0 {
		return unix.ENOTEMPTY
	}
	for _, name := range m.below(dir) {
		m.note(ruleRemoved)
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
