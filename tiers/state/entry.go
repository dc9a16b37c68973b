package state

import (
	"bytes"
	"time"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
)

// CountFound counts a look-up or an open that found an entry, if that is a committed block. The caller holds the lock.
func CountFound(e *State, en *index.Entry) {
	if en.IsRegular() && en.Stable() {
		e.Mu.Room.Group(en.Group()).Found++
	}
}

// ExpiredLocked reports whether a file is past its time to live.
func (st *State) ExpiredLocked(id index.ID) bool {
	at := st.Mu.Ix.Expires(id)
	return at != 0 && at <= st.Now()
}

// OpenForWritingLocked reports whether any process has a descriptor for writing an entry.
func (st *State) OpenForWritingLocked(id index.ID) bool {
	f := st.Mu.Files[id]
	return f != nil && f.OpenLocked()
}

// ChildPathLocked returns the path of the name in the directory parent.
func (st *State) ChildPathLocked(parent index.ID, name string) string {
	if parent == index.Root {
		return name
	}
	st.Mu.Scratch = append(append(st.Mu.Ix.AppendPath(st.Mu.Scratch[:0], parent), '/'), name...)
	return string(st.Mu.Scratch)
}

// RecordOf returns the record of a committed entry.
func (st *State) RecordOf(id index.ID, en *index.Entry) driver.Record {
	ix := st.Mu.Ix
	r := driver.Record{
		Path: ix.Path(id), Dir: en.IsDir(), Seq: en.Seq(), Size: en.Size(),
		Mode: uint32(en.Mode() & 0o7777), UID: en.UID(), GID: en.GID(),
		Mtime: time.Unix(0, en.Mtime()), Atime: time.Unix(0, en.Atime()),
		Pinned: en.Pinned(), User: st.Mu.UserAttrs(id, en),
	}
	if en.HasSum() {
		r.Sum = block.Checksum{Sum: en.Sum(), Valid: true}
	}
	if at := ix.Expires(id); at != 0 {
		r.Expires = time.Unix(0, at)
	}
	return r
}

// DirLocked checks that id is a directory that still has a name.
func (st *State) DirLocked(id index.ID) error {
	switch {
	case !st.Mu.Ix.At(id).IsDir():
		return block.ErrNotDir
	case id != index.Root && !st.Mu.Ix.Linked(id):
		return block.ErrNotFound
	}
	return nil
}

// ChangedLocked notes that the names in a directory changed.
func (st *State) ChangedLocked(dir index.ID) {
	now := st.Now()
	st.ApplyLocked(catalog.Times{ID: dir, Mtime: now, Ctime: now})
}

// ReachesLocked reports whether v may search a directory and all directories above it.
func (st *State) ReachesLocked(v *event.Viewer, dir index.ID) bool {
	for ; dir != 0; dir = st.Mu.Ix.Parent(dir) {
		if en := st.Mu.Ix.At(dir); !v.May(event.MaySearch, uint32(en.Mode()), en.UID(), en.GID()) {
			return false
		}
	}
	return true
}

// ShowsLocked reports whether v may read a file in a directory.
func (st *State) ShowsLocked(v *event.Viewer, dir, id index.ID) bool {
	if v == nil {
		return true
	}
	en := st.Mu.Ix.At(id)
	return v.May(event.MayRead, uint32(en.Mode()), en.UID(), en.GID()) && st.ReachesLocked(v, dir)
}

// GuardLocked appends the permissions that keep users from knowing an entry by its name: of it and the directories
// above it those that not all users may read. It appends nothing for most entries.
func (st *State) GuardLocked(guard []driver.DirAttrs, id index.ID) []driver.DirAttrs {
	for ; id != 0; id = st.Mu.Ix.Parent(id) {
		en := st.Mu.Ix.At(id)
		mode := uint32(en.Mode())
		if all := event.Wanted(mode) * 0o111; mode&all != all {
			guard = append(guard, driver.DirAttrs{Mode: mode, UID: en.UID(), GID: en.GID()})
		}
	}
	return guard
}

// PathWalker finds directories. It remembers the last one.
type PathWalker struct {
	Ix  *index.Index
	dir []byte // nil: no directory yet
	id  index.ID
}

// Split returns the directory of a path, 0 if there is none, and the name in it.
func (w *PathWalker) Split(path []byte) (dir index.ID, name string) {
	n := len(w.dir)
	if n > 0 && len(path) > n && path[n] == '/' && bytes.Equal(path[:n], w.dir) && bytes.IndexByte(path[n+1:], '/') < 0 {
		return w.id, View(path[n+1:])
	}
	cut := bytes.LastIndexByte(path, '/')
	if cut < 0 {
		return index.Root, View(path)
	}
	if cut == 0 {
		return 0, "" // no path begins with a slash
	}
	w.dir = path[:cut]
	w.id = w.Ix.Walk(View(w.dir))
	return w.id, View(path[cut+1:])
}

// View returns a string that shares the bytes of b. It is valid until they change.
func View(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
