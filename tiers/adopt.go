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
	"github.com/kvfs/kvfs/tiers/state"
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
	err := e.Primary.Adopt(func(id driver.BlobID, r *driver.Record, modified bool) bool {
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
	g := state.Gone{Blobs: left.replaced}
	for _, d := range dirs {
		e.adoptOne(d.blob, &d.r, &g)
	}
	for _, f := range files {
		if f.r.Seq < left.changed[f.r.Path] {
			left.dropped++
			g.Blobs = append(g.Blobs, f.blob)
			continue
		}
		e.adoptOne(f.blob, &f.r, &g)
	}
	e.Mu.Counters.AdoptDropped += uint64(left.dropped)
	e.Finish(&g)
	if n := e.Mu.Counters.Adopted; n > 0 || left.dropped > 0 {
		e.Log.Info("adopted blocks of an earlier process", zap.Uint64("blocks", n),
			zap.Uint64("bytes", e.Mu.Counters.AdoptedBytes), zap.Int("dropped", left.dropped))
	}
	return nil
}

// adoptOne enters one record. The engine is not shared yet, so adoptOne needs no lock.
func (e *adoption) adoptOne(blob driver.BlobID, r *driver.Record, g *state.Gone) {
	parent := e.adoptParents(path.Dir(r.Path))
	if parent == 0 { // a directory above is a file here
		e.Mu.Counters.AdoptDropped++
		g.Blobs = append(g.Blobs, blob)
		return
	}
	e.raiseDirs(parent, r.Seq)
	name := path.Base(r.Path)
	ix := e.Mu.Ix
	if old := ix.Lookup(parent, name); old != 0 {
		oe := ix.At(old)
		if !r.Dir || oe.Mode&state.ModeType != state.ModeDir || oe.Blob != 0 {
			g.Blobs = append(g.Blobs, blob)
			return
		}
		oe.Mode, oe.UID, oe.GID, oe.Blob, oe.Seq = state.ModeDir|r.Mode, r.UID, r.GID, uint64(blob), r.Seq
		e.names.AddDirFile()
		return
	}
	id := ix.Alloc()
	en := ix.At(id)
	en.Mode, en.UID, en.GID, en.Seq, en.Blob = state.ModeRegular|r.Mode, r.UID, r.GID, r.Seq, uint64(blob)
	en.Mtime, en.Atime, en.Ctime = r.Mtime.UnixNano(), r.Atime.UnixNano(), r.Mtime.UnixNano()
	e.Mu.Seq = max(e.Mu.Seq, r.Seq)
	if r.Dir {
		en.Mode = state.ModeDir | r.Mode
		ix.Link(id, parent, name)
		e.writing.RenamedDirLocked(id, en)
		e.names.AddDirFile()
		return
	}
	en.Size = r.Size
	if r.Pinned {
		en.Flags |= state.FlagPinned
	}
	if r.Sum.Valid {
		en.Sum, en.Flags = r.Sum.Sum, en.Flags|state.FlagSum
	}
	if !r.Expires.IsZero() {
		en.Expires = r.Expires.UnixNano()
		e.Mu.Expiries.Add(en.Expires, id)
	}
	e.EnterGroupLocked(en, e.GroupOfLocked(parent))
	en.Flags |= e.NameFlagsLocked(parent, name)
	ix.Link(id, parent, name)
	e.AddUsedLocked(en, state.ChargeOf(en.Size))
	e.ClassifyLocked(id, en)
	switch e.KindLocked(en) {
	case draft.Block:
		e.Mu.Room.Group(en.Group).Learn(en.Size)
	case draft.Temp:
		e.writing.NewFileLocked(id, en) // it waits for its rename
	}
	e.Mu.Blocks++
	e.Mu.Counters.Adopted++
	e.Mu.Counters.AdoptedBytes += uint64(en.Size)
}

// plainPath reports whether a file is never committed. Such a file is adopted as it is.
func (e *adoption) plainPath(p string) bool {
	parts := strings.Split(p, "/")
	name := parts[len(parts)-1]
	group := block.GroupID("")
	if len(parts) > 1 {
		group = block.GroupID(parts[0])
	}
	return e.Opts.Groups[group].Pinned || e.Plain.Name(name) || e.Temp.Name(name) || slices.ContainsFunc(parts[:len(parts)-1], e.Temp.Dir)
}

// adoptParents makes the directories of a path whose own records are missing. Each gets the owner of the directory
// above, and its mode, at most 0755. It returns the last directory, or 0 if one of them is a file.
func (e *adoption) adoptParents(dir string) index.ID {
	if dir == "." || dir == "/" {
		return index.Root
	}
	if id := e.Mu.Ix.Walk(dir); id != 0 {
		if e.Mu.Ix.At(id).Mode&state.ModeType != state.ModeDir {
			return 0
		}
		return id
	}
	parent := e.adoptParents(path.Dir(dir))
	if parent == 0 {
		return 0
	}
	id := e.Mu.Ix.Alloc()
	en := e.Mu.Ix.At(id)
	now, above := e.Now(), e.Mu.Ix.At(parent)
	en.Mode, en.UID, en.GID = above.Mode&(state.ModeType|0o755), above.UID, above.GID
	en.Mtime, en.Atime, en.Ctime = now, now, now
	e.Mu.Ix.Link(id, parent, path.Base(dir))
	e.MarkDirLocked(id, en)
	return id
}

// raiseDirs gives directories without a record, from dir upwards, the highest commit number
// below them. So no grave from before that number applies to them.
func (e *adoption) raiseDirs(dir index.ID, seq uint64) {
	for ; dir != index.Root && dir != 0; dir = e.Mu.Ix.Parent(dir) {
		en := e.Mu.Ix.At(dir)
		if en.Blob != 0 || en.Seq >= seq {
			return
		}
		en.Seq = seq
	}
}

// shrinkAdopted evicts blocks if an earlier process had more memory than this one.
func (e *adoption) shrinkAdopted() {
	var g state.Gone
	for gr := range e.Mu.Room.Groups() {
		e.writing.ShrinkLocked(gr.Bill(), &g)
	}
	e.Finish(&g)
}

// enumerate enters the blocks that the secondary tiers hold. Of two versions of a name the higher commit number wins,
// wherever it is. The other version is removed. Blocks that only memory has are copied down.
func (e *adoption) enumerate() error {
	for _, s := range e.Tiers {
		list, ok := s.Tier.(driver.Enumerator)
		if !ok {
			continue
		}
		if st, ok := s.Tier.(driver.Statser); ok {
			e.Mu.Ix.Reserve(e.Mu.Ix.Len() + 2*int(st.Stats().Blocks)) // half full: short chains
		}
		var g state.Gone
		en := enumeration{e: e, s: s, g: &g}
		if err := list.Blocks(func(h *driver.Held) bool { en.add(h); return true }); err != nil {
			return err
		}
		if len(en.stale) > 0 {
			s.Tier.Remove(en.stale)
		}
		e.Finish(&g)
		e.Log.Info("blocks of an earlier process", zap.String("tier", s.Opts.Name), zap.Uint64("blocks", en.blocks),
			zap.Uint64("bytes", en.bytes), zap.Int("stale", len(en.stale)))
	}
	if len(e.Tiers) > 0 && e.Mu.Blocks > 0 {
		e.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			e.lower.CascadeLocked(id, en)
			return true
		})
	}
	return nil
}

// enumeration enters the blocks of one tier, one by one. The engine is not shared yet, so it needs no lock.
type enumeration struct {
	e             *adoption
	s             *state.Secondary
	g             *state.Gone
	stale         []block.Key
	blocks, bytes uint64
	dir           string   // directory of the block before
	parent        index.ID // entry of dir
}

func (n *enumeration) add(h *driver.Held) {
	e := n.e
	if h.Attrs.Expires != 0 && h.Attrs.Expires <= e.Now() {
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
	if id := e.Mu.Ix.Lookup(n.parent, name); id != 0 {
		n.meet(id, h)
		return
	}
	id := e.Mu.Ix.Alloc()
	en := e.Mu.Ix.At(id)
	a := &h.Attrs
	en.Mode, en.UID, en.GID, en.Seq, en.Size = state.ModeRegular|a.Mode&0o7777, a.UID, a.GID, a.Seq, h.Size
	en.Mtime, en.Atime, en.Ctime = a.Mtime, a.Mtime, a.Mtime
	if h.Sum.Valid {
		en.Sum, en.Flags = h.Sum.Sum, en.Flags|state.FlagSum
	}
	if a.Pinned {
		en.Flags |= state.FlagPinned
	}
	if a.Expires != 0 {
		en.Expires = a.Expires
		e.Mu.Expiries.Add(a.Expires, id)
	}
	en.Tiers = n.s.Bit
	e.EnterGroupLocked(en, e.GroupOfLocked(n.parent))
	e.Mu.Ix.Link(id, n.parent, name)
	e.Mu.Room.Group(en.Group).Learn(h.Size)
	e.Mu.Hollow++
	e.Mu.Seq = max(e.Mu.Seq, a.Seq)
	n.blocks++
	n.bytes += uint64(h.Size)
}

// meet decides about a block whose name has an entry already.
func (n *enumeration) meet(id index.ID, h *driver.Held) {
	e := n.e
	en := e.Mu.Ix.At(id)
	switch {
	case en.Mode&state.ModeType == state.ModeDir, en.Seq > h.Attrs.Seq:
		n.stale = append(n.stale, h.Key)
		return
	case en.Seq < h.Attrs.Seq:
		e.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonSuperseded}, n.g)
		n.add(h)
		return
	}
	en.Tiers |= n.s.Bit
	if h.Sum.Valid && en.Flags&state.FlagSum == 0 {
		en.Sum, en.Flags = h.Sum.Sum, en.Flags|state.FlagSum
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
		id := e.Mu.Ix.Lookup(parent, name)
		if id == 0 {
			id = e.Mu.Ix.Alloc()
			en := e.Mu.Ix.At(id)
			now := e.Now()
			en.Mode, en.Mtime, en.Atime, en.Ctime = state.ModeDir|0o755, now, now, now
			en.UID, en.GID = uint32(os.Getuid()), uint32(os.Getgid())
			e.Mu.Ix.Link(id, parent, name)
			e.MarkDirLocked(id, en)
		}
		if en := e.Mu.Ix.At(id); depth < len(kept) && en.Mode&state.ModeType == state.ModeDir && en.Blob == 0 {
			en.Mode, en.UID, en.GID = state.ModeDir|kept[depth].Mode&0o7777, kept[depth].UID, kept[depth].GID
		}
		if e.Mu.Ix.At(id).Mode&state.ModeType != state.ModeDir {
			return 0
		}
		parent = id
	}
	return parent
}
