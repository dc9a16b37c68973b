package elsewhere

import (
	"context"
	"slices"
	"sort"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// A node tells other nodes what it has: committed files whose bytes are in memory or on a device of its own, and its
// own directories. It does not tell of temporary names, nor of the raw files of pinned groups, because those change
// in place.

// holdsLocked reports whether this node tells other nodes of an entry.
func (ln *lending) holdsLocked(id index.ID, en *index.Entry) bool {
	if id == index.Root || !ln.Mu.Ix.Linked(id) || !en.Stable() {
		return false
	}
	far := uint16(0)
	if ln.Remote != nil {
		far = ln.Remote.Bit
	}
	if en.IsDir() {
		return en.Tiers&far == 0
	}
	local := en.InMemory() || en.Tiers&^far != 0
	return local && !ln.Mu.Room.Group(en.Group).Pinned() && !ln.ExpiredLocked(id)
}

func (ln *lending) holdingLocked(id index.ID, en *index.Entry, path string, h *Holding) {
	*h = Holding{
		Path: path, Seq: en.Seq, Size: en.Size, Mode: uint32(en.Mode), UID: en.UID, GID: en.GID,
		Mtime: en.Mtime, Expires: ln.Mu.Ix.Expires(id), Pinned: en.Pinned(), Memory: en.InMemory(),
		tiers: ln.OwnTiers(en),
	}
	if en.HasSum() {
		h.Sum = block.Checksum{Sum: en.Sum, Valid: true}
	}
	if en.IsDir() {
		h.Size, h.Memory = 0, false
	}
}

// Holding returns the file or directory of this node at path. It returns false if there is none, or if it is not
// complete.
func (ln *lending) Holding(path string) (Holding, bool) {
	var h Holding
	ln.Mu.Lock()
	defer ln.Mu.Unlock()
	id := ln.Mu.Ix.Walk(path)
	if id == 0 {
		return h, false
	}
	en := ln.Mu.Ix.At(id)
	if !ln.holdsLocked(id, en) {
		return h, false
	}
	ln.holdingLocked(id, en, path, &h)
	if !en.IsDir() {
		h.Dirs = ln.AttrsLocked(id, en).Dirs
	}
	return h, true
}

// Holdings calls fn for each file and directory of this node, a directory before its entries, until fn fails, and
// returns that error. It holds no lock meanwhile. An entry that changes meanwhile may come in its old state or not at
// all; an entry that stays comes. Dirs is not set. h is valid until fn returns.
func (ln *lending) Holdings(ctx context.Context, fn func(h *Holding) error) error {
	dirs := []index.ID{index.Root}
	var batch []Holding
	for len(dirs) > 0 {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		var after uint64
		var hint index.ID
		for {
			batch, dirs, after, hint = ln.holdingsOf(dir, after, hint, batch[:0], dirs)
			for i := range batch {
				if err := fn(&batch[i]); err != nil {
					return err
				}
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if hint == 0 {
				break
			}
		}
	}
	return nil
}

// Blocks calls fn for each block whose bytes this node has, with its size in bytes and the names of its tiers, those
// of other nodes left out. It fails with the error of fn or ctx. fn must not change tiers. Like Holdings it holds no
// lock meanwhile.
func (ln *lending) Blocks(ctx context.Context, fn func(path string, size int64, tiers []string) error) error {
	names := map[uint32][]string{}
	return ln.Holdings(ctx, func(h *Holding) error {
		if h.Mode&state.ModeType == state.ModeDir {
			return nil
		}
		mask := uint32(h.tiers) << 1
		if h.Memory {
			mask |= 1
		}
		list, ok := names[mask]
		if !ok {
			if h.Memory {
				list = append(list, "memory")
			}
			for _, s := range ln.Tiers {
				if h.tiers&s.Bit != 0 {
					list = append(list, s.Opts.Name)
				}
			}
			names[mask] = list
		}
		return fn(h.Path, h.Size, list)
	})
}

// TiersOf returns the names of the tiers of this node that have the block at path, none if there is no such block.
func (ln *lending) TiersOf(path string) []string {
	ln.Mu.Lock()
	defer ln.Mu.Unlock()
	id := ln.Mu.Ix.Walk(path)
	if id == 0 || !ln.holdsLocked(id, ln.Mu.Ix.At(id)) || ln.Mu.Ix.At(id).IsDir() {
		return nil
	}
	names := ln.TierNamesLocked(id)
	if ln.Remote != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return name == ln.Remote.Opts.Name })
	}
	return names
}

// holdingBatch bounds how many names one hold of the lock copies.
const holdingBatch = 1024

// holdingsOf appends to batch the files and directories of this node that are in dir after a cookie, and to dirs the
// directories among them. It returns the next cookie and hint; hint is 0 if there are no more.
func (ln *lending) holdingsOf(dir index.ID, after uint64, hint index.ID, batch []Holding, dirs []index.ID) ([]Holding, []index.ID, uint64, index.ID) {
	ln.Mu.Lock()
	defer ln.Mu.Unlock()
	ix := ln.Mu.Ix
	if !ix.Valid(dir) || !ix.At(dir).IsDir() || dir != index.Root && !ix.Linked(dir) {
		return batch, dirs, 0, 0
	}
	n := 0
	last := index.ID(0)
	path := append(ix.AppendPath(nil, dir), '/')
	if dir == index.Root {
		path = path[:0]
	}
	ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
		if n == holdingBatch {
			last = hint
			return false
		}
		n++
		after, hint = cookie, id
		if en.IsDir() {
			dirs = append(dirs, id)
		}
		if ln.holdsLocked(id, en) {
			batch = append(batch, Holding{})
			ln.holdingLocked(id, en, string(path)+ix.Name(id), &batch[len(batch)-1])
		}
		return true
	})
	return batch, dirs, after, last
}

// maxHoldings bounds the result of HoldingsIn.
const maxHoldings = 1 << 16

// HoldingsIn returns the files and directories of this node in dir whose names come after the given one: at most
// limit and at most 65536, in ascending order. more says whether there are others. Dirs is not set. Each call goes
// through the whole directory, so ask for many names at a time.
func (ln *lending) HoldingsIn(dir, after string, limit int) (list []Holding, more bool) {
	limit = max(0, min(limit, maxHoldings))
	ln.Mu.Lock()
	id := ln.Mu.Ix.Walk(dir)
	ln.Mu.Unlock()
	if id == 0 {
		return nil, false
	}
	names := nameHeap{limit: limit + 1}
	var cookie uint64
	var hint index.ID
	for {
		if cookie, hint = ln.namesAfter(id, cookie, hint, after, &names); hint == 0 {
			break
		}
	}
	sort.Strings(names.names)
	if more = len(names.names) > limit; more {
		names.names = names.names[:limit]
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	for _, name := range names.names {
		if h, ok := ln.Holding(prefix + name); ok {
			list = append(list, h)
		}
	}
	return list, more
}

// namesAfter adds to names those of a directory that this node has, from a cookie on. It returns the next cookie and
// hint; hint is 0 if there are no more.
func (ln *lending) namesAfter(dir index.ID, cookie uint64, hint index.ID, after string, names *nameHeap) (uint64, index.ID) {
	ln.Mu.Lock()
	defer ln.Mu.Unlock()
	ix := ln.Mu.Ix
	if !ix.Valid(dir) || !ix.At(dir).IsDir() {
		return 0, 0
	}
	n, last := 0, index.ID(0)
	ix.ReadDir(dir, cookie, hint, func(id index.ID, en *index.Entry, c uint64) bool {
		if n == holdingBatch {
			last = hint
			return false
		}
		n++
		cookie, hint = c, id
		if name := ix.Name(id); name > after && ln.holdsLocked(id, en) {
			names.add(name)
		}
		return true
	})
	return cookie, last
}

// nameHeap keeps the first names, in ascending order, of those added.
type nameHeap struct {
	limit int
	names []string // a heap with the last name on top
}

func (h *nameHeap) add(name string) {
	if len(h.names) < h.limit {
		h.names = append(h.names, name)
		for i := len(h.names) - 1; i > 0 && h.names[(i-1)/2] < h.names[i]; i = (i - 1) / 2 {
			h.names[i], h.names[(i-1)/2] = h.names[(i-1)/2], h.names[i]
		}
		return
	}
	if h.limit == 0 || name >= h.names[0] {
		return
	}
	h.names[0] = name
	for i := 0; ; {
		big := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.names); c++ {
			if h.names[c] > h.names[big] {
				big = c
			}
		}
		if big == i {
			return
		}
		h.names[i], h.names[big] = h.names[big], h.names[i]
		i = big
	}
}
