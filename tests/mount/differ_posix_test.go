package mount

import (
	"bytes"
	"io"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// What the model does with files.

// do does op, returns its error and puts its results into a.
func (m *model) do(op differOp, a *modelAnswer) syscall.Errno {
	for f := range m.files {
		if m.files[f].late != op.P {
			m.files[f].late = none // kvfs has heard of it by the time another acts
		}
	}
	switch op.Do {
	case "open":
		return m.open(op)
	case "close":
		return m.close(op.P, op.S)
	case "kill":
		m.kill(op.P)
	case "crash":
		m.crash()
	case "evict":
	case "unlink":
		return m.unlink(op)
	case "rename":
		return m.rename(op)
	case "mkdir":
		return m.mkdir(op)
	case "rmdir":
		return m.rmdir(op)
	case "list":
		return m.list(op, a)
	case "stat", "readfile", "truncate", "chmod", "utimens":
		return m.doPath(op, a)
	case "same":
		return m.same(op, a)
	case "mread":
		return m.mread(op, a)
	case "munmap":
		key := slotKey{op.P, op.T}
		m.touch = append(m.touch, "map "+key.String())
		return m.munmap(key)
	default:
		return m.doFD(op, a)
	}
	return 0
}

func (m *model) stat(f int, a *modelAnswer) {
	file := m.files[f]
	a.Stat = differStat{Size: int64(len(file.data)), Mode: file.mode, Nlink: 1, Mtime: file.mtime}
	if _, named := m.nameOf(f); !named {
		a.Stat.Nlink = 0
	}
	a.anyLinks = m.rules && (file.maker != none || a.Stat.Nlink == 0 && (file.rule|m.seen) != 0)
}

func (m *model) doPath(op differOp, a *modelAnswer) syscall.Errno {
	if mode, dir := m.dirs[op.A]; dir {
		m.about(op.A)
		a.Stat = differStat{Mode: unix.S_IFDIR | mode, Nlink: 2, Mtime: differRecent}
		return 0
	}
	if errno := m.parent(op.A); errno != 0 {
		m.about(op.A)
		return errno
	}
	f := m.see(op.P, op.A)
	if f == none {
		return unix.ENOENT
	}
	file := &m.files[f]
	switch op.Do {
	case "stat":
		m.stat(f, a)
	case "readfile":
		m.stat(f, a)
		a.Data = file.data
	case "chmod":
		file.mode = unix.S_IFREG | op.Mode
	case "utimens":
		file.mtime = op.N
		switch {
		case m.writers(f, none):
			file.dirty = true // the record has another time until the last close
		case m.mapped(f): // which counts as open, if it may write
			file.stable, file.dirty = append(slices.Clone(file.stable), modelStable{file.data, file.mtime}), true
		case !file.dirty:
			file.keep()
		}
	case "truncate":
		m.setData(f, resized(file.data, op.N))
		mapped := m.rules && m.mapped(f) && m.pick(2, "whether kvfs counts a mapping as open") == 1
		if file.maker == none && !m.writers(f, none) && !mapped {
			file.keep()
		}
	}
	return 0
}

func (m *model) list(op differOp, a *modelAnswer) syscall.Errno {
	m.about(op.A)
	if _, ok := m.dirs[op.A]; !ok {
		return unix.ENOENT
	}
	m.looked = append(m.looked, op.A)
	for _, name := range m.below(op.A) {
		if m.see(op.P, name) != none {
			a.Names = append(a.Names, path.Base(name))
		}
	}
	for dir := range m.dirs {
		if dir != "." && path.Dir(dir) == op.A {
			a.Names = append(a.Names, dir)
		}
	}
	slices.Sort(a.Names)
	return 0
}

func (m *model) same(op differOp, a *modelAnswer) syscall.Errno {
	o, ok := m.slots[slotKey{op.P, op.S}]
	x, other := m.slots[slotKey{op.Q, op.T}]
	m.touch = append(m.touch, slotKey{op.P, op.S}.String(), slotKey{op.Q, op.T}.String())
	if !ok || !other {
		return unix.EBADF
	}
	f, g := m.opens[o].file, m.opens[x].file
	m.involved = append(m.involved, f, g)
	if f == g {
		a.N = 1
	}
	return 0
}

func (m *model) mread(op differOp, a *modelAnswer) syscall.Errno {
	key := slotKey{op.P, op.T}
	m.touch = append(m.touch, "map "+key.String())
	f, ok := m.maps[key]
	if !ok {
		return unix.EBADF
	}
	m.involved = append(m.involved, f)
	data := m.files[f].data
	pages := (int64(len(data)) + 4095) &^ 4095
	end := min(op.Off+op.N, differMapBytes)
	if end > pages {
		return unix.EFAULT
	}
	a.Data = resized(data, max(end, int64(len(data))))[op.Off:end]
	a.N = end - op.Off
	return 0
}

// doFD does what needs a descriptor.
func (m *model) doFD(op differOp, a *modelAnswer) syscall.Errno {
	key := slotKey{op.P, op.S}
	m.touch = append(m.touch, key.String())
	switch op.Do {
	case "dup":
		m.touch = append(m.touch, slotKey{op.P, op.T}.String())
	case "mmap":
		m.touch = append(m.touch, "map "+slotKey{op.P, op.T}.String())
	}
	n, ok := m.slots[key]
	if !ok {
		return unix.EBADF
	}
	o := &m.opens[n]
	m.involved = append(m.involved, o.file)
	file := &m.files[o.file]
	switch op.Do {
	case "dup":
		return m.dup(op, n)
	case "mmap":
		return m.mmap(op, o)
	case "flock":
		return m.flock(op, o)
	case "fstat":
		m.stat(o.file, a)
	case "samename":
		return m.sameName(op, o.file, a)
	case "fchmod":
		file.mode = unix.S_IFREG | op.Mode
	case "fsync", "fdatasync":
		m.fsync(o.file)
	case "read", "pread":
		return read(op, o, file.data, a)
	case "lseek":
		a.N = op.Off + map[int]int64{io.SeekCurrent: o.off, io.SeekEnd: int64(len(file.data))}[op.Flags]
		o.off = a.N
	default:
		return m.change(op, o, a)
	}
	return 0
}

func (m *model) dup(op differOp, open int) syscall.Errno {
	to := slotKey{op.P, op.T}
	if _, used := m.slots[to]; used {
		return unix.EMFILE
	}
	m.slots[to] = open
	return 0
}

func (m *model) mmap(op differOp, o *modelOpen) syscall.Errno {
	to := slotKey{op.P, op.T}
	if _, used := m.maps[to]; used {
		return unix.EMFILE
	}
	if !o.reads() {
		return unix.EACCES
	}
	m.maps[to] = o.file
	return 0
}

// munmap ends a mapping. That may be the last close.
func (m *model) munmap(key slotKey) syscall.Errno {
	f, ok := m.maps[key]
	if !ok {
		return unix.EBADF
	}
	delete(m.maps, key)
	m.involved = append(m.involved, f)
	if _, ok := m.nameOf(f); ok && m.files[f].maker == key.p && !m.opened(f, key.p) && !m.hasMapped(f, key.p) {
		m.settleFile(f)
	}
	return 0
}

// flock drops the lock before it asks for another kind, as Linux does.
func (m *model) flock(op differOp, o *modelOpen) syscall.Errno {
	if o.lock == op.Flags {
		return 0
	}
	o.lock = 0
	if op.Flags == unix.LOCK_UN {
		return 0
	}
	for _, n := range m.slots {
		x := m.opens[n]
		if x.file == o.file && (x.lock == unix.LOCK_EX || x.lock != 0 && op.Flags == unix.LOCK_EX) {
			return unix.EAGAIN
		}
	}
	o.lock = op.Flags
	return 0
}

func (m *model) sameName(op differOp, f int, a *modelAnswer) syscall.Errno {
	m.about(op.A)
	if errno := m.parent(op.A); errno != 0 {
		return errno
	}
	g := m.see(op.P, op.A)
	if g == none {
		return unix.ENOENT
	}
	if f == g {
		a.N = 1
	}
	return 0
}

func (m *model) fsync(f int) {
	file := &m.files[f]
	name, ok := m.nameOf(f)
	if ok && file.maker != none {
		m.note(ruleSynced)
		m.settleFile(f)
		return
	}
	if m.disk && !(ok && m.temporary(name)) && file.maker == none {
		file.keep()
	} else if file.maker == none {
		file.stable = append(slices.Clone(file.stable), modelStable{file.data, file.mtime})
	}
}

func read(op differOp, o *modelOpen, data []byte, a *modelAnswer) syscall.Errno {
	if !o.reads() {
		return unix.EBADF
	}
	off := op.Off
	if op.Do == "read" {
		off = o.off
	}
	a.Data = data[min(off, int64(len(data))):min(off+op.N, int64(len(data)))]
	a.N = int64(len(a.Data))
	if op.Do == "read" {
		o.off += a.N
	}
	return 0
}

// change does what changes a file.
func (m *model) change(op differOp, o *modelOpen, a *modelAnswer) syscall.Errno {
	data := m.files[o.file].data
	size := int64(len(data))
	switch {
	case op.Do == "mwrite" && o.flags&unix.O_ACCMODE != unix.O_RDWR:
		return unix.EACCES
	case op.Do == "ftruncate" && !o.writes():
		return unix.EINVAL
	case !o.writes():
		return unix.EBADF
	}
	off := op.Off
	switch op.Do {
	case "ftruncate":
		m.setData(o.file, resized(data, op.N))
		return 0
	case "fallocate":
		if op.Mode == 0 {
			data = resized(data, max(size, op.Off+op.N))
		}
		mtime := m.files[o.file].mtime
		m.setData(o.file, data)
		if m.rules && int64(len(data)) == size && m.pick(2, "whether fallocate that does not grow the file is a change") == 1 {
			m.note(ruleFallocate)
			m.files[o.file].mtime = mtime
		}
		return 0
	case "mwrite":
		if a.N = max(0, min(off+op.N, size, differMapBytes)-off); a.N == 0 {
			return 0
		}
	case "write":
		off, a.N = o.off, op.N
		if o.flags&unix.O_APPEND != 0 {
			off = size
		}
		o.off = off + op.N
	case "pwrite": // Linux appends and ignores the offset
		a.N = op.N
		if o.flags&unix.O_APPEND != 0 {
			off = size
		}
	}
	data = bytes.Clone(resized(data, max(size, off+a.N)))
	copy(data[off:], op.data()[:a.N])
	m.setData(o.file, data)
	if op.Do == "mwrite" && m.rules && (!m.direct || m.pick(2, "whether kvfs hears of an msync") == 1) {
		m.fsync(o.file)
	}
	return 0
}
