package tiers

import (
	"cmp"
	"os"
	"path"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// adoption enters, at Open, the files that an earlier process left in the tiers. No other code of the engine runs.
type adoption struct{ *Engine }

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
	err := ad.st.Primary.Adopt(func(id driver.BlobID, r *driver.Record, modified bool) bool {
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
	ad.st.Mu.Ix.Reserve(ad.st.Mu.Ix.Len() + len(left.files))
	for i := range left.files {
		ad.nameFile(&left, i)
	}
	for i := range left.files {
		ad.fillFile(&left.files[i])
	}
	ad.st.Mu.Counters.AdoptDropped += left.dropped
	ad.st.Finish(&left.gone)
	if n := ad.st.Mu.Counters.Adopted; n > 0 || left.dropped > 0 {
		ad.st.Log.Info("adopted blocks of an earlier process", zap.Uint64("blocks", n),
			zap.Uint64("bytes", ad.st.Mu.Counters.AdoptedBytes), zap.Uint64("dropped", left.dropped))
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
	ad.st.Mu.Seq = max(ad.st.Mu.Seq, d.seq)
	d.id = ad.st.ApplyLocked(&catalog.CreatedDir{
		Attrs: attrsOf(state.ModeDir, d.r), Parent: parent, Name: path.Base(d.r.Path), Blob: uint64(d.blob), Seq: d.seq,
	}).ID
}

// attrsOf returns the attributes that a record has, for an entry of a type.
func attrsOf(kind uint32, r *driver.Record) catalog.Attrs {
	return catalog.Attrs{
		Mode: uint16(kind | r.Mode), UID: r.UID, GID: r.GID,
		Mtime: r.Mtime.UnixNano(), Atime: r.Atime.UnixNano(), Ctime: r.Mtime.UnixNano(),
	}
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
	ix, name := ad.st.Mu.Ix, path.Base(f.r.Path)
	if f.id = ix.Lookup(parent, name); f.id == 0 {
		f.id = ad.st.ApplyLocked(catalog.Found{Parent: parent, Name: name, Blob: uint64(f.blob)}).ID
		return
	}
	if ix.At(f.id).IsDir() {
		f.id = 0
		left.gone.Blobs = append(left.gone.Blobs, f.blob)
		return
	}
	left.drop(ad.st.ApplyLocked(catalog.Found{ID: f.id, Blob: uint64(f.blob)}).Blob)
}

// fillFile fills the entry of a file, if the file still has one.
func (ad *adoption) fillFile(f *leftFile) {
	if f.id == 0 {
		return
	}
	r, en := f.r, ad.st.Mu.Ix.At(f.id)
	if en.Blob() != uint64(f.blob) {
		return // it is that of a later commit
	}
	ad.st.Mu.Seq = max(ad.st.Mu.Seq, f.seq)
	x := catalog.Adopted{
		Attrs: attrsOf(state.ModeRegular, r), Name: path.Base(r.Path), Seq: f.seq, Size: r.Size, Sum: r.Sum, Pinned: r.Pinned,
		User: r.User,
	}
	x.ID = f.id
	if !r.Expires.IsZero() {
		x.Expires = r.Expires.UnixNano()
	}
	ad.st.ApplyLocked(&x)
	if ad.st.Mu.Kind(en) == draft.Temp {
		ad.Files.NewFileLocked(f.id, en) // it waits for its rename
	}
	if r.Link != "" {
		ad.Names.AdoptLinkLocked(r.Link, f.id)
	}
	ad.st.Mu.Counters.Adopted++
	ad.st.Mu.Counters.AdoptedBytes += uint64(en.Size())
}

// plainPath reports whether a file is never committed. Such a file is adopted as it is.
func (ad *adoption) plainPath(p string) bool {
	parts := strings.Split(p, "/")
	name := parts[len(parts)-1]
	group := block.GroupID("")
	if len(parts) > 1 {
		group = block.GroupID(parts[0])
	}
	return ad.st.Opts.Groups[group].Pinned || ad.st.Plain.Name(name) || ad.st.Temp.Name(name) || slices.ContainsFunc(parts[:len(parts)-1], ad.st.Temp.Dir)
}

// adoptParents makes the directories of a path whose own records are missing. Each gets the owner of the directory
// above, and its mode, at most 0755. It returns the last directory, or 0 if one of them is a file.
func (ad *adoption) adoptParents(dir string) index.ID {
	if dir == "." || dir == "/" {
		return index.Root
	}
	if id := ad.st.Mu.Ix.Walk(dir); id != 0 {
		if !ad.st.Mu.Ix.At(id).IsDir() {
			return 0
		}
		return id
	}
	parent := ad.adoptParents(path.Dir(dir))
	if parent == 0 {
		return 0
	}
	now, above := ad.st.Now(), ad.st.Mu.Ix.At(parent)
	return ad.st.ApplyLocked(&catalog.CreatedDir{
		Attrs: catalog.Attrs{
			Mode: above.Mode() & (state.ModeType | 0o755), UID: above.UID(), GID: above.GID(), Mtime: now, Atime: now, Ctime: now,
		},
		Parent: parent, Name: path.Base(dir),
	}).ID
}

// raiseDirs gives directories without a record, from dir upwards, the highest commit number
// below them. So no grave from before that number applies to them.
func (ad *adoption) raiseDirs(dir index.ID, seq uint64) {
	for ; dir != index.Root && dir != 0; dir = ad.st.Mu.Ix.Parent(dir) {
		en := ad.st.Mu.Ix.At(dir)
		if en.InMemory() || en.Seq() >= seq {
			return
		}
		ad.st.ApplyLocked(catalog.Versioned{ID: dir, Seq: seq})
	}
}

// shrinkAdopted evicts blocks if an earlier process had more memory than this one.
func (ad *adoption) shrinkAdopted() {
	var g state.Gone
	for gr := range ad.st.Mu.Room.Groups() {
		ad.Files.ShrinkLocked(gr.Bill(), &g)
	}
	ad.st.Finish(&g)
}

// enumerate enters the blocks that the secondary tiers hold. Of two versions of a name the higher commit number wins,
// wherever it is. The other version is removed. Blocks that only memory has are copied down.
func (ad *adoption) enumerate() error {
	for _, s := range ad.st.Tiers {
		list, ok := s.Tier.(driver.Enumerator)
		if !ok {
			continue
		}
		if st, ok := s.Tier.(driver.Statser); ok {
			ad.st.Mu.Ix.Reserve(ad.st.Mu.Ix.Len() + 2*int(st.Stats().Blocks)) // half full: short chains
		}
		var g state.Gone
		en := enumeration{e: ad, s: s, g: &g}
		if err := list.Blocks(func(h *driver.Held) bool { en.add(h); return true }); err != nil {
			return err
		}
		if len(en.stale) > 0 {
			s.Tier.Remove(en.stale)
		}
		ad.st.Finish(&g)
		ad.st.Log.Info("blocks of an earlier process", zap.String("tier", s.Opts.Name), zap.Uint64("blocks", en.blocks),
			zap.Uint64("bytes", en.bytes), zap.Int("stale", len(en.stale)))
	}
	if blocks, _ := ad.st.Mu.Blocks(); len(ad.st.Tiers) > 0 && blocks > 0 {
		ad.st.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			ad.Transfer.CascadeLocked(id, en)
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
	if h.Attrs.Expires != 0 && h.Attrs.Expires <= e.st.Now() {
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
	if id := e.st.Mu.Ix.Lookup(n.parent, name); id != 0 {
		n.meet(id, h)
		return
	}
	a := &h.Attrs
	e.st.ApplyLocked(&catalog.CreatedFile{
		Attrs: catalog.Attrs{
			Mode: uint16(state.ModeRegular | a.Mode&0o7777), UID: a.UID, GID: a.GID, Mtime: a.Mtime, Atime: a.Mtime, Ctime: a.Mtime,
		},
		Parent: n.parent, Name: name, Tiers: n.s.Bit, Seq: a.Seq, Size: h.Size, Sum: h.Sum, Expires: a.Expires, Pinned: a.Pinned,
		User: a.User,
	})
	e.st.Mu.Seq = max(e.st.Mu.Seq, a.Seq)
	n.blocks++
	n.bytes += uint64(h.Size)
}

// meet decides about a block whose name has an entry already.
func (n *enumeration) meet(id index.ID, h *driver.Held) {
	e := n.e
	en := e.st.Mu.Ix.At(id)
	switch {
	case en.IsDir(), en.Seq() > h.Attrs.Seq:
		n.stale = append(n.stale, h.Key)
		return
	case en.Seq() < h.Attrs.Seq:
		e.Names.DropNameLocked(id, en, outcome.Cause{Reason: outcome.ReasonSuperseded}, n.g)
		n.add(h)
		return
	}
	e.st.ApplyLocked(catalog.Copied{ID: id, Bit: n.s.Bit, Sum: h.Sum, Old: true})
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
		id := ad.st.Mu.Ix.Lookup(parent, name)
		if id == 0 {
			now := ad.st.Now()
			id = ad.st.ApplyLocked(&catalog.CreatedDir{
				Attrs: catalog.Attrs{
					Mode: state.ModeDir | 0o755, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Mtime: now, Atime: now, Ctime: now,
				},
				Parent: parent, Name: name,
			}).ID
		}
		if en := ad.st.Mu.Ix.At(id); depth < len(kept) && en.IsDir() && !en.InMemory() {
			x := catalog.AttrsOf(id, en)
			x.Mode, x.UID, x.GID = uint16(state.ModeDir|kept[depth].Mode&0o7777), kept[depth].UID, kept[depth].GID
			ad.st.ApplyLocked(&x)
		}
		if !ad.st.Mu.Ix.At(id).IsDir() {
			return 0
		}
		parent = id
	}
	return parent
}
