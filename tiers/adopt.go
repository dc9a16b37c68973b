package tiers

import (
	"os"
	"path"
	"slices"
	"sort"
	"strings"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// adoption enters, at Open, the files that an earlier process left in the tiers. No other code of the engine runs.
type adoption struct{ *core }

// inventory is what an earlier process left in the primary tier.
type inventory struct {
	dirs, files []leftFile
	latest      map[string]int    // path -> index into dirs or files
	changed     map[string]uint64 // path -> commit number of a file that changed after its commit
	replaced    []driver.BlobID   // files with an earlier commit of a path
	dropped     int               // files that nothing is made of
}

// leftFile is a file of the primary tier with its record.
type leftFile struct {
	blob driver.BlobID
	r    driver.Record
}

// reject counts a file that cannot be taken over. modified says that it changed after its commit.
func (v *inventory) reject(r *driver.Record, modified bool) {
	v.dropped++
	if modified {
		v.changed[r.Path] = max(v.changed[r.Path], r.Seq)
	}
}

// add adds a file, and reports false if a file with a later commit has its path.
func (v *inventory) add(id driver.BlobID, r *driver.Record) bool {
	list := &v.files
	if r.Dir {
		list = &v.dirs
	}
	if i, ok := v.latest[r.Path]; ok && i < len(*list) && (*list)[i].r.Path == r.Path {
		v.dropped++
		if (*list)[i].r.Seq >= r.Seq {
			return false
		}
		v.replaced = append(v.replaced, (*list)[i].blob)
		(*list)[i] = leftFile{id, *r}
		return true
	}
	v.latest[r.Path] = len(*list)
	*list = append(*list, leftFile{id, *r})
	return true
}

// adopt takes over the files that an earlier process left in the primary tier. Of several files with one path the
// latest commit wins. A file that changed after its commit is dropped, because the change may not be whole. The file
// that it replaced is dropped, too.
func (e *adoption) adopt() error {
	left := inventory{latest: map[string]int{}, changed: map[string]uint64{}}
	err := e.primary.Adopt(func(id driver.BlobID, r *driver.Record, modified bool) bool {
		if modified && !r.Dir && !e.plainPath(r.Path) || block.CheckPath(r.Path) != nil {
			left.reject(r, modified)
			return false
		}
		return left.add(id, r)
	})
	if err != nil {
		return err
	}
	left.latest = nil
	dirs, files := left.dirs, left.files
	sort.Slice(dirs, func(i, j int) bool { return dirs[i].r.Path < dirs[j].r.Path })
	sort.Slice(files, func(i, j int) bool { return files[i].r.Seq < files[j].r.Seq })
	g := gone{blobs: left.replaced}
	for _, d := range dirs {
		e.adoptOne(d.blob, &d.r, &g)
	}
	for _, f := range files {
		if f.r.Seq < left.changed[f.r.Path] {
			left.dropped++
			g.blobs = append(g.blobs, f.blob)
			continue
		}
		e.adoptOne(f.blob, &f.r, &g)
	}
	e.mu.counters.AdoptDropped += uint64(left.dropped)
	e.finish(&g)
	if n := e.mu.counters.Adopted; n > 0 || left.dropped > 0 {
		e.log.Info("adopted blocks of an earlier process", zap.Uint64("blocks", n),
			zap.Uint64("bytes", e.mu.counters.AdoptedBytes), zap.Int("dropped", left.dropped))
	}
	return nil
}

// adoptOne enters one record. The engine is not shared yet, so adoptOne needs no lock.
func (e *adoption) adoptOne(blob driver.BlobID, r *driver.Record, g *gone) {
	parent := e.adoptParents(path.Dir(r.Path))
	if parent == 0 { // a directory above is a file here
		e.mu.counters.AdoptDropped++
		g.blobs = append(g.blobs, blob)
		return
	}
	e.raiseDirs(parent, r.Seq)
	name := path.Base(r.Path)
	ix := e.mu.ix
	if old := ix.Lookup(parent, name); old != 0 {
		oe := ix.At(old)
		if !r.Dir || oe.Mode&modeType != modeDir || oe.Blob != 0 {
			g.blobs = append(g.blobs, blob)
			return
		}
		oe.Mode, oe.UID, oe.GID, oe.Blob, oe.Seq = modeDir|r.Mode, r.UID, r.GID, uint64(blob), r.Seq
		e.names.dirFiles++
		return
	}
	id := ix.Alloc()
	en := ix.At(id)
	en.Mode, en.UID, en.GID, en.Seq, en.Blob = modeRegular|r.Mode, r.UID, r.GID, r.Seq, uint64(blob)
	en.Mtime, en.Atime, en.Ctime = r.Mtime.UnixNano(), r.Atime.UnixNano(), r.Mtime.UnixNano()
	e.mu.seq = max(e.mu.seq, r.Seq)
	if r.Dir {
		en.Mode = modeDir | r.Mode
		ix.Link(id, parent, name)
		e.renames.renamedDirLocked(id, en)
		e.names.dirFiles++
		return
	}
	en.Size = r.Size
	if r.Pinned {
		en.Flags |= flagPinned
	}
	if r.Sum.Valid {
		en.Sum, en.Flags = r.Sum.Sum, en.Flags|flagSum
	}
	if !r.Expires.IsZero() {
		en.Expires = r.Expires.UnixNano()
		e.mu.expiries.Add(en.Expires, id)
	}
	e.space.enterGroupLocked(en, e.groupOfLocked(parent))
	en.Flags |= e.nameFlagsLocked(parent, name)
	ix.Link(id, parent, name)
	e.space.addUsedLocked(en, chargeOf(en.Size))
	e.classifyLocked(id, en)
	switch e.kindLocked(en) {
	case draft.Block:
		e.mu.room.Group(en.Group).Learn(en.Size)
	case draft.Temp:
		e.drafts.newFileLocked(id, en) // it waits for its rename
	}
	e.mu.blocks++
	e.mu.counters.Adopted++
	e.mu.counters.AdoptedBytes += uint64(en.Size)
}

// plainPath reports whether a file is never committed. Such a file is adopted as it is.
func (e *adoption) plainPath(p string) bool {
	parts := strings.Split(p, "/")
	name := parts[len(parts)-1]
	group := block.GroupID("")
	if len(parts) > 1 {
		group = block.GroupID(parts[0])
	}
	return e.opts.Groups[group].Pinned || e.plain.Name(name) || e.temp.Name(name) || slices.ContainsFunc(parts[:len(parts)-1], e.temp.Dir)
}

// adoptParents makes the directories of a path whose own records are missing. Each gets the owner of the directory
// above, and its mode, at most 0755. It returns the last directory, or 0 if one of them is a file.
func (e *adoption) adoptParents(dir string) index.ID {
	if dir == "." || dir == "/" {
		return index.Root
	}
	if id := e.mu.ix.Walk(dir); id != 0 {
		if e.mu.ix.At(id).Mode&modeType != modeDir {
			return 0
		}
		return id
	}
	parent := e.adoptParents(path.Dir(dir))
	if parent == 0 {
		return 0
	}
	id := e.mu.ix.Alloc()
	en := e.mu.ix.At(id)
	now, above := e.now(), e.mu.ix.At(parent)
	en.Mode, en.UID, en.GID = above.Mode&(modeType|0o755), above.UID, above.GID
	en.Mtime, en.Atime, en.Ctime = now, now, now
	e.mu.ix.Link(id, parent, path.Base(dir))
	e.names.markDirLocked(id, en)
	return id
}

// raiseDirs gives directories without a record, from dir upwards, the highest commit number
// below them. So no grave from before that number applies to them.
func (e *adoption) raiseDirs(dir index.ID, seq uint64) {
	for ; dir != index.Root && dir != 0; dir = e.mu.ix.Parent(dir) {
		en := e.mu.ix.At(dir)
		if en.Blob != 0 || en.Seq >= seq {
			return
		}
		en.Seq = seq
	}
}

// shrinkAdopted evicts blocks if an earlier process had more memory than this one.
func (e *adoption) shrinkAdopted() {
	var g gone
	for gr := range e.mu.room.Groups() {
		e.drafts.shrinkLocked(gr, &g)
	}
	e.finish(&g)
}

// enumerate enters the blocks that the secondary tiers hold. Of two versions of a name the higher commit number wins,
// wherever it is. The other version is removed. Blocks that only memory has are copied down.
func (e *adoption) enumerate() error {
	for _, s := range e.tiers {
		list, ok := s.tier.(driver.Enumerator)
		if !ok {
			continue
		}
		if st, ok := s.tier.(driver.Statser); ok {
			e.mu.ix.Reserve(e.mu.ix.Len() + 2*int(st.Stats().Blocks)) // half full: short chains
		}
		var g gone
		en := enumeration{e: e, s: s, g: &g}
		if err := list.Blocks(func(h *driver.Held) bool { en.add(h); return true }); err != nil {
			return err
		}
		if len(en.stale) > 0 {
			s.tier.Remove(en.stale)
		}
		e.finish(&g)
		e.log.Info("blocks of an earlier process", zap.String("tier", s.opts.Name), zap.Uint64("blocks", en.blocks),
			zap.Uint64("bytes", en.bytes), zap.Int("stale", len(en.stale)))
	}
	if len(e.tiers) > 0 && e.mu.blocks > 0 {
		e.mu.ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			e.copies.cascadeLocked(id, en)
			return true
		})
	}
	return nil
}

// enumeration enters the blocks of one tier, one by one. The engine is not shared yet, so it needs no lock.
type enumeration struct {
	e             *adoption
	s             *secondary
	g             *gone
	stale         []block.Key
	blocks, bytes uint64
	dir           string   // directory of the block before
	parent        index.ID // entry of dir
}

func (n *enumeration) add(h *driver.Held) {
	e := n.e
	if h.Attrs.Expires != 0 && h.Attrs.Expires <= e.now() {
		n.stale = append(n.stale, h.Key)
		return
	}
	full := h.Key.Path()
	if block.CheckPath(full) != nil {
		n.stale = append(n.stale, h.Key)
		return
	}
	dir, name := path.Split(full)
	if dir != n.dir || n.parent == 0 {
		n.dir, n.parent = dir, e.adoptDirs(dir, h.Attrs.Dirs)
	}
	if n.parent != 0 {
		e.raiseDirs(n.parent, h.Attrs.Seq)
	}
	if n.parent == 0 { // a directory above is a file here
		n.stale = append(n.stale, h.Key)
		return
	}
	if id := e.mu.ix.Lookup(n.parent, name); id != 0 {
		n.meet(id, h)
		return
	}
	id := e.mu.ix.Alloc()
	en := e.mu.ix.At(id)
	a := &h.Attrs
	en.Mode, en.UID, en.GID, en.Seq, en.Size = modeRegular|a.Mode&0o7777, a.UID, a.GID, a.Seq, h.Size
	en.Mtime, en.Atime, en.Ctime = a.Mtime, a.Mtime, a.Mtime
	if h.Sum.Valid {
		en.Sum, en.Flags = h.Sum.Sum, en.Flags|flagSum
	}
	if a.Pinned {
		en.Flags |= flagPinned
	}
	if a.Expires != 0 {
		en.Expires = a.Expires
		e.mu.expiries.Add(a.Expires, id)
	}
	en.Tiers = n.s.bit
	e.space.enterGroupLocked(en, e.groupOfLocked(n.parent))
	e.mu.ix.Link(id, n.parent, name)
	e.mu.room.Group(en.Group).Learn(h.Size)
	e.mu.hollow++
	e.mu.seq = max(e.mu.seq, a.Seq)
	n.blocks++
	n.bytes += uint64(h.Size)
}

// meet decides about a block whose name has an entry already.
func (n *enumeration) meet(id index.ID, h *driver.Held) {
	e := n.e
	en := e.mu.ix.At(id)
	switch {
	case en.Mode&modeType == modeDir, en.Seq > h.Attrs.Seq:
		n.stale = append(n.stale, h.Key)
		return
	case en.Seq < h.Attrs.Seq:
		e.names.dropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonSuperseded}, n.g)
		n.add(h)
		return
	}
	en.Tiers |= n.s.bit
	if h.Sum.Valid && en.Flags&flagSum == 0 {
		en.Sum, en.Flags = h.Sum.Sum, en.Flags|flagSum
	}
	n.blocks++
	n.bytes += uint64(h.Size)
}

// adoptDirs makes the directories of a path that are missing. kept has the attributes that the tier kept of them,
// outermost first. adoptDirs returns the last directory, or 0 if one of them is a file.
func (e *adoption) adoptDirs(dir string, kept []driver.DirAttrs) index.ID {
	parent := index.Root
	for depth := 0; dir != ""; depth++ {
		var name string
		name, dir, _ = strings.Cut(dir, "/")
		id := e.mu.ix.Lookup(parent, name)
		if id == 0 {
			id = e.mu.ix.Alloc()
			en := e.mu.ix.At(id)
			now := e.now()
			en.Mode, en.Mtime, en.Atime, en.Ctime = modeDir|0o755, now, now, now
			en.UID, en.GID = uint32(os.Getuid()), uint32(os.Getgid())
			e.mu.ix.Link(id, parent, name)
			e.names.markDirLocked(id, en)
		}
		if en := e.mu.ix.At(id); depth < len(kept) && en.Mode&modeType == modeDir && en.Blob == 0 {
			en.Mode, en.UID, en.GID = modeDir|kept[depth].Mode&0o7777, kept[depth].UID, kept[depth].GID
		}
		if e.mu.ix.At(id).Mode&modeType != modeDir {
			return 0
		}
		parent = id
	}
	return parent
}
