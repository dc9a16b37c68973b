package tiers

import (
	"os"
	"path"
	"sort"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// adopt takes over what an earlier process left in the primary tier. Of several
// files with one path the latest commit wins; a file that changed after its
// commit is dropped, because nobody knows whether the change was whole.
func (e *Engine) adopt() error {
	type found struct {
		blob BlobID
		r    Record
	}
	var dirs, files []found
	latest := map[string]int{} // path -> index into files or dirs
	var g gone
	dropped := 0
	err := e.primary.Adopt(func(id BlobID, r *Record, modified bool) bool {
		if modified && !r.Dir || block.CheckPath(r.Path) != nil {
			dropped++
			return false
		}
		list := &files
		if r.Dir {
			list = &dirs
		}
		if i, ok := latest[r.Path]; ok && i < len(*list) && (*list)[i].r.Path == r.Path {
			dropped++
			if (*list)[i].r.Seq >= r.Seq {
				return false
			}
			g.blobs = append(g.blobs, (*list)[i].blob)
			(*list)[i] = found{id, *r}
			return true
		}
		latest[r.Path] = len(*list)
		*list = append(*list, found{id, *r})
		return true
	})
	if err != nil {
		return err
	}
	latest = nil
	sort.Slice(dirs, func(i, j int) bool { return dirs[i].r.Path < dirs[j].r.Path })
	sort.Slice(files, func(i, j int) bool { return files[i].r.Seq < files[j].r.Seq })
	for _, d := range dirs {
		e.adoptOne(d.blob, &d.r, &g)
	}
	for _, f := range files {
		e.adoptOne(f.blob, &f.r, &g)
	}
	e.mu.counters.AdoptDropped += uint64(dropped)
	for _, gr := range e.mu.groups {
		e.shrinkLocked(gr, &g)
	}
	e.finish(&g)
	if n := e.mu.counters.Adopted; n > 0 || dropped > 0 {
		e.log.Info("adopted blocks of an earlier process", zap.Uint64("blocks", n),
			zap.Uint64("bytes", e.mu.counters.AdoptedBytes), zap.Int("dropped", dropped))
	}
	return nil
}

// adoptOne enters one record. It runs before the engine is shared, so it needs
// no lock.
func (e *Engine) adoptOne(blob BlobID, r *Record, g *gone) {
	parent := e.adoptParents(path.Dir(r.Path))
	if parent == 0 { // below what is a file
		e.mu.counters.AdoptDropped++
		g.blobs = append(g.blobs, blob)
		return
	}
	name := path.Base(r.Path)
	ix := e.mu.ix
	if old := ix.Lookup(parent, name); old != 0 {
		oe := ix.At(old)
		if !r.Dir || oe.Mode&modeType != modeDir || oe.Blob != 0 {
			g.blobs = append(g.blobs, blob)
			return
		}
		oe.Mode, oe.UID, oe.GID, oe.Blob, oe.Seq = modeDir|r.Mode, r.UID, r.GID, uint64(blob), r.Seq
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
		e.renamedDirLocked(id, en)
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
		e.mu.expiries.add(en.Expires, id)
	}
	en.Group = e.groupOfLocked(parent, name)
	ix.Link(id, parent, name)
	e.addUsedLocked(en, chargeOf(en.Size))
	e.classifyLocked(id, en)
	e.mu.groups[en.Group].learn(en.Size)
	e.mu.blocks++
	e.mu.counters.Adopted++
	e.mu.counters.AdoptedBytes += uint64(en.Size)
}

// adoptParents makes the directories of a path whose own records are missing, and
// returns the last, or 0 if one of them is a file.
func (e *Engine) adoptParents(dir string) index.ID {
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
	now := e.now()
	en.Mode, en.Mtime, en.Atime, en.Ctime = modeDir|0o755, now, now, now
	en.UID, en.GID = uint32(os.Getuid()), uint32(os.Getgid())
	e.mu.ix.Link(id, parent, path.Base(dir))
	return id
}
