package tiers

import (
	"cmp"
	"os"
	"path"
	"slices"
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
	changed     map[string]uint64 // path -> commit number of a file that changed after its commit
	gone        state.Gone        // files that nothing is made of
	dropped     uint64
}

// leftFile is a file of the primary tier with its record.
type leftFile struct {
	seq  uint64 // that of r
	blob driver.BlobID
	r    *driver.Record
	id   index.ID // its entry; 0: none
}

// drop gives up a file.
func (v *inventory) drop(blob uint64) {
	v.dropped++
	v.gone.Blobs = append(v.gone.Blobs, driver.BlobID(blob))
}

// adopt takes over the files that an earlier process left in the primary tier. Of several files with one path the
// latest commit wins. A file that changed after its commit is dropped, because the change may not be whole. The file
// that it replaced is dropped, too.
func (ad *adoption) adopt() error {
	left := inventory{changed: map[string]uint64{}}
	err := ad.Primary.Adopt(func(id driver.BlobID, r *driver.Record, modified bool) bool {
		changed := modified && !r.Dir && !ad.plainPath(r.Path)
		if changed {
			left.changed[r.Path] = max(left.changed[r.Path], r.Seq)
		}
		if changed || block.CheckPath(r.Path) != nil {
			left.dropped++
			return false
		}
		list := &left.files
		if r.Dir {
			list = &left.dirs
		}
		*list = append(*list, leftFile{seq: r.Seq, blob: id, r: r})
		return true
	})
	if err != nil {
		return err
	}
	slices.SortFunc(left.dirs, func(a, b leftFile) int {
		return cmp.Or(cmp.Compare(a.r.Path, b.r.Path), cmp.Compare(a.seq, b.seq))
	})
	for i := range left.dirs {
		ad.adoptDir(&left, i)
	}
	slices.SortFunc(left.files, func(a, b leftFile) int { return cmp.Compare(a.seq, b.seq) })
	ad.Mu.Ix.Reserve(ad.Mu.Ix.Len() + len(left.files))
	for i := range left.files {
		ad.nameFile(&left, i)
	}
	for i := range left.files {
		ad.fillFile(&left.files[i])
	}
	ad.Mu.Counters.AdoptDropped += left.dropped
	ad.Finish(&left.gone)
	if n := ad.Mu.Counters.Adopted; n > 0 || left.dropped > 0 {
		ad.Log.Info("adopted blocks of an earlier process", zap.Uint64("blocks", n),
			zap.Uint64("bytes", ad.Mu.Counters.AdoptedBytes), zap.Uint64("dropped", left.dropped))
	}
	return nil
}

// adoptDir enters directory i, whose parents precede it. Of records with one path the last one counts. The engine is
// not shared yet, so this and the methods below need no lock.
func (ad *adoption) adoptDir(left *inventory, i int) {
	d := &left.dirs[i]
	if i+1 < len(left.dirs) && left.dirs[i+1].r.Path == d.r.Path {
		left.drop(uint64(d.blob))
		return
	}
	parent := ad.adoptParents(path.Dir(d.r.Path))
	ad.raiseDirs(parent, d.seq)
	ix, r, name := ad.Mu.Ix, d.r, path.Base(d.r.Path)
	ad.Mu.Seq = max(ad.Mu.Seq, d.seq)
	d.id = ix.Alloc()
	en := ix.At(d.id)
	en.Mode, en.UID, en.GID, en.Seq, en.Blob = uint16(state.ModeDir|r.Mode), r.UID, r.GID, d.seq, uint64(d.blob)
	en.Mtime, en.Atime, en.Ctime = r.Mtime.UnixNano(), r.Atime.UnixNano(), r.Mtime.UnixNano()
	ix.Link(d.id, parent, name)
	ad.MarkDirLocked(d.id, en)
	ad.names.AddDirFile()
}

// nameFile gives file i an entry and its name, or drops it. Of files with one path the one named last has the entry.
func (ad *adoption) nameFile(left *inventory, i int) {
	f := &left.files[i]
	if f.seq < left.changed[f.r.Path] {
		left.drop(uint64(f.blob))
		return
	}
	parent := ad.adoptParents(path.Dir(f.r.Path))
	if parent == 0 { // a directory above is a file here
		left.drop(uint64(f.blob))
		return
	}
	ad.raiseDirs(parent, f.seq)
	ix, name := ad.Mu.Ix, path.Base(f.r.Path)
	if f.id = ix.Lookup(parent, name); f.id == 0 {
		f.id = ix.Alloc()
		en := ix.At(f.id)
		en.Mode, en.Blob = state.ModeRegular, uint64(f.blob)
		ix.Link(f.id, parent, name)
		return
	}
	en := ix.At(f.id)
	if en.IsDir() {
		f.id = 0
		left.gone.Blobs = append(left.gone.Blobs, f.blob)
		return
	}
	left.drop(en.Blob)
	en.Blob = uint64(f.blob)
}

// fillFile fills the entry of a file, if the file still has one.
func (ad *adoption) fillFile(f *leftFile) {
	if f.id == 0 {
		return
	}
	ix, r := ad.Mu.Ix, f.r
	en := ix.At(f.id)
	if en.Blob != uint64(f.blob) {
		return // it is that of a later commit
	}
	ad.Mu.Seq = max(ad.Mu.Seq, f.seq)
	en.Mode, en.UID, en.GID, en.Seq, en.Size = uint16(state.ModeRegular|r.Mode), r.UID, r.GID, f.seq, r.Size
	en.Mtime, en.Atime, en.Ctime = r.Mtime.UnixNano(), r.Atime.UnixNano(), r.Mtime.UnixNano()
	if r.Sum.Valid {
		en.Sum, en.Flags = r.Sum.Sum, en.Flags|index.FlagSum
	}
	if !r.Expires.IsZero() {
		ix.SetExpires(f.id, r.Expires.UnixNano())
	}
	parent := ix.Parent(f.id)
	ad.EnterGroupLocked(en, ad.GroupOfLocked(parent))
	en.Flags |= ad.NameFlagsLocked(parent, path.Base(r.Path))
	state.Pin(ad.State, f.id, en, r.Pinned)
	ad.AddUsedLocked(en, state.ChargeOf(en.Size))
	ad.ClassifyLocked(f.id, en)
	switch ad.KindLocked(en) {
	case draft.Block:
		ad.Mu.Room.Group(en.Group).Learn(en.Size)
	case draft.Temp:
		ad.writing.NewFileLocked(f.id, en) // it waits for its rename
	}
	ad.RecountLocked(state.Uncounted, state.Resident)
	ad.Mu.Counters.Adopted++
	ad.Mu.Counters.AdoptedBytes += uint64(en.Size)
}

// plainPath reports whether a file is never committed. Such a file is adopted as it is.
func (ad *adoption) plainPath(p string) bool {
	parts := strings.Split(p, "/")
	name := parts[len(parts)-1]
	group := block.GroupID("")
	if len(parts) > 1 {
		group = block.GroupID(parts[0])
	}
	return ad.Opts.Groups[group].Pinned || ad.Plain.Name(name) || ad.Temp.Name(name) || slices.ContainsFunc(parts[:len(parts)-1], ad.Temp.Dir)
}

// adoptParents makes the directories of a path whose own records are missing. Each gets the owner of the directory
// above, and its mode, at most 0755. It returns the last directory, or 0 if one of them is a file.
func (ad *adoption) adoptParents(dir string) index.ID {
	if dir == "." || dir == "/" {
		return index.Root
	}
	if id := ad.Mu.Ix.Walk(dir); id != 0 {
		if !ad.Mu.Ix.At(id).IsDir() {
			return 0
		}
		return id
	}
	parent := ad.adoptParents(path.Dir(dir))
	if parent == 0 {
		return 0
	}
	id := ad.Mu.Ix.Alloc()
	en := ad.Mu.Ix.At(id)
	now, above := ad.Now(), ad.Mu.Ix.At(parent)
	en.Mode, en.UID, en.GID = above.Mode&(state.ModeType|0o755), above.UID, above.GID
	en.Mtime, en.Atime, en.Ctime = now, now, now
	ad.Mu.Ix.Link(id, parent, path.Base(dir))
	ad.MarkDirLocked(id, en)
	return id
}

// raiseDirs gives directories without a record, from dir upwards, the highest commit number
// below them. So no grave from before that number applies to them.
func (ad *adoption) raiseDirs(dir index.ID, seq uint64) {
	for ; dir != index.Root && dir != 0; dir = ad.Mu.Ix.Parent(dir) {
		en := ad.Mu.Ix.At(dir)
		if en.InMemory() || en.Seq >= seq {
			return
		}
		en.Seq = seq
	}
}

// shrinkAdopted evicts blocks if an earlier process had more memory than this one.
func (ad *adoption) shrinkAdopted() {
	var g state.Gone
	for gr := range ad.Mu.Room.Groups() {
		ad.writing.ShrinkLocked(gr.Bill(), &g)
	}
	ad.Finish(&g)
}

// enumerate enters the blocks that the secondary tiers hold. Of two versions of a name the higher commit number wins,
// wherever it is. The other version is removed. Blocks that only memory has are copied down.
func (ad *adoption) enumerate() error {
	for _, s := range ad.Tiers {
		list, ok := s.Tier.(driver.Enumerator)
		if !ok {
			continue
		}
		if st, ok := s.Tier.(driver.Statser); ok {
			ad.Mu.Ix.Reserve(ad.Mu.Ix.Len() + 2*int(st.Stats().Blocks)) // half full: short chains
		}
		var g state.Gone
		en := enumeration{e: ad, s: s, g: &g}
		if err := list.Blocks(func(h *driver.Held) bool { en.add(h); return true }); err != nil {
			return err
		}
		if len(en.stale) > 0 {
			s.Tier.Remove(en.stale)
		}
		ad.Finish(&g)
		ad.Log.Info("blocks of an earlier process", zap.String("tier", s.Opts.Name), zap.Uint64("blocks", en.blocks),
			zap.Uint64("bytes", en.bytes), zap.Int("stale", len(en.stale)))
	}
	if blocks, _ := ad.BlocksLocked(); len(ad.Tiers) > 0 && blocks > 0 {
		ad.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			ad.lower.CascadeLocked(id, en)
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
	en.Mode, en.UID, en.GID, en.Seq, en.Size = uint16(state.ModeRegular|a.Mode&0o7777), a.UID, a.GID, a.Seq, h.Size
	en.Mtime, en.Atime, en.Ctime = a.Mtime, a.Mtime, a.Mtime
	if h.Sum.Valid {
		en.Sum, en.Flags = h.Sum.Sum, en.Flags|index.FlagSum
	}
	e.Mu.Ix.SetExpires(id, a.Expires)
	en.Tiers = n.s.Bit
	e.EnterGroupLocked(en, e.GroupOfLocked(n.parent))
	state.Pin(e.State, id, en, a.Pinned)
	e.Mu.Ix.Link(id, n.parent, name)
	e.Mu.Room.Group(en.Group).Learn(h.Size)
	e.RecountLocked(state.Uncounted, state.Hollow)
	e.Mu.Seq = max(e.Mu.Seq, a.Seq)
	n.blocks++
	n.bytes += uint64(h.Size)
}

// meet decides about a block whose name has an entry already.
func (n *enumeration) meet(id index.ID, h *driver.Held) {
	e := n.e
	en := e.Mu.Ix.At(id)
	switch {
	case en.IsDir(), en.Seq > h.Attrs.Seq:
		n.stale = append(n.stale, h.Key)
		return
	case en.Seq < h.Attrs.Seq:
		e.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonSuperseded}, n.g)
		n.add(h)
		return
	}
	en.Tiers |= n.s.Bit
	if h.Sum.Valid && !en.HasSum() {
		en.Sum, en.Flags = h.Sum.Sum, en.Flags|index.FlagSum
	}
	n.blocks++
	n.bytes += uint64(h.Size)
}

// adoptDirs makes the directories of a path that are missing. kept has the attributes that the tier kept of them,
// outermost first. adoptDirs returns the last directory, or 0 if one of them is a file.
func (ad *adoption) adoptDirs(dir string, kept []driver.DirAttrs) index.ID {
	parent := index.Root
	for depth := 0; dir != ""; depth++ {
		var name string
		name, dir, _ = strings.Cut(dir, "/")
		id := ad.Mu.Ix.Lookup(parent, name)
		if id == 0 {
			id = ad.Mu.Ix.Alloc()
			en := ad.Mu.Ix.At(id)
			now := ad.Now()
			en.Mode, en.Mtime, en.Atime, en.Ctime = state.ModeDir|0o755, now, now, now
			en.UID, en.GID = uint32(os.Getuid()), uint32(os.Getgid())
			ad.Mu.Ix.Link(id, parent, name)
			ad.MarkDirLocked(id, en)
		}
		if en := ad.Mu.Ix.At(id); depth < len(kept) && en.IsDir() && !en.InMemory() {
			en.Mode, en.UID, en.GID = uint16(state.ModeDir|kept[depth].Mode&0o7777), kept[depth].UID, kept[depth].GID
		}
		if !ad.Mu.Ix.At(id).IsDir() {
			return 0
		}
		parent = id
	}
	return parent
}
