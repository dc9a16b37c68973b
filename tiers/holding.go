package tiers

import (
	"context"
	"os"
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Holding is what this node itself has of a name: in memory, or in a secondary tier that is not Remote.
type Holding struct {
	Path    string
	Seq     uint64
	Size    int64          // bytes
	Sum     block.Checksum // if it was computed
	Mode    uint32         // type and permission bits, as st_mode
	UID     uint32
	GID     uint32
	Mtime   int64
	Expires int64
	Pinned  bool
	Memory  bool
	User    block.UserAttrs
	Dirs    []driver.DirAttrs // of a file: the directories above it, outermost first

	tiers uint16 // of this node that have it, but memory
}

// LendOptions says what is to be lent, and how.
type LendOptions struct {
	Path string
	Seq  uint64 // this version only; 0: any
}

// Lent is a block held for another node. Its bytes do not change until Close.
type Lent struct {
	Holding          // Sum is valid
	File    *os.File // open for reading; closed by Close
	close   func()

	id   index.ID // of what is in memory: the entry that is held, and its bytes
	blob driver.BlobID
}

// Close ends the loan.
func (l *Lent) Close() { l.close() }

// A node tells other nodes what it has: committed files whose bytes are in memory or on a device of its own, and its
// own directories. It does not tell of temporary names, nor of the raw files of pinned groups, because those change
// in place.

// holdsLocked reports whether this node tells other nodes of an entry.
func (e *Engine) holdsLocked(id index.ID, en *index.Entry) bool {
	if id == index.Root || !e.st.Mu.Ix.Linked(id) || !en.Stable() {
		return false
	}
	if en.IsDir() {
		return en.Tiers()&e.st.RemoteBit() == 0
	}
	local := en.InMemory() || e.st.OwnTiers(en) != 0
	return local && !e.st.Mu.Room.Group(en.Group()).Pinned() && !e.st.ExpiredLocked(id)
}

func (e *Engine) holdingLocked(id index.ID, en *index.Entry, path string, h *Holding) {
	*h = Holding{
		Path: path, Seq: en.Seq(), Size: en.Size(), Mode: uint32(en.Mode()), UID: en.UID(), GID: en.GID(),
		Mtime: en.Mtime(), Expires: e.st.Mu.Ix.Expires(id), Pinned: en.Pinned(), Memory: en.InMemory(),
		User:  e.st.Mu.UserAttrs(id, en),
		tiers: e.st.OwnTiers(en),
	}
	if en.HasSum() {
		h.Sum = block.Checksum{Sum: en.Sum(), Valid: true}
	}
	if en.IsDir() {
		h.Size, h.Memory = 0, false
	}
}

// Holding returns the file or directory of this node at path. It returns false if there is none, or if it is not
// complete.
func (e *Engine) Holding(path string) (Holding, bool) {
	var h Holding
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	id := e.st.Mu.Ix.Walk(path)
	if id == 0 {
		return h, false
	}
	en := e.st.Mu.Ix.At(id)
	if !e.holdsLocked(id, en) {
		return h, false
	}
	e.holdingLocked(id, en, path, &h)
	if !en.IsDir() {
		h.Dirs = e.st.AttrsLocked(id, en).Dirs
	}
	return h, true
}

// Holdings calls fn for each file and directory of this node, a directory before its entries, until fn fails, and
// returns that error. It holds no lock meanwhile. An entry that changes meanwhile may come in its old state or not at
// all; an entry that stays comes. Dirs is not set. h is valid until fn returns.
func (e *Engine) Holdings(ctx context.Context, fn func(h *Holding) error) error {
	dirs := []index.ID{index.Root}
	var batch []Holding
	for len(dirs) > 0 {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		var after uint64
		var hint index.ID
		for more := true; more; more = hint != 0 {
			batch = batch[:0]
			prefix := ""
			after, hint = e.someOf(dir, after, hint, func(id index.ID, en *index.Entry) {
				if prefix == "" && dir != index.Root {
					prefix = e.st.Mu.Ix.Path(dir) + "/"
				}
				if en.IsDir() {
					dirs = append(dirs, id)
				}
				if e.holdsLocked(id, en) {
					batch = append(batch, Holding{})
					e.holdingLocked(id, en, prefix+e.st.Mu.Ix.Name(id), &batch[len(batch)-1])
				}
			})
			for i := range batch {
				if err := fn(&batch[i]); err != nil {
					return err
				}
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Blocks calls fn for each block whose bytes this node has, with its size in bytes and the names of its tiers, those
// of other nodes left out. It fails with the error of fn or ctx. fn must not change tiers. Like Holdings it holds no
// lock meanwhile.
func (e *Engine) Blocks(ctx context.Context, fn func(path string, size int64, tiers []string) error) error {
	names := map[uint32][]string{}
	return e.Holdings(ctx, func(h *Holding) error {
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
			for _, s := range e.st.Tiers {
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
func (e *Engine) TiersOf(path string) []string {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	id := e.st.Mu.Ix.Walk(path)
	if id == 0 || !e.holdsLocked(id, e.st.Mu.Ix.At(id)) || e.st.Mu.Ix.At(id).IsDir() {
		return nil
	}
	names := e.st.TierNamesLocked(id)
	if e.st.Remote != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return name == e.st.Remote.Opts.Name })
	}
	return names
}

// holdingBatch bounds how many names one hold of the lock copies.
const holdingBatch = 1024

// someOf calls fn under the lock for holdingBatch entries of a directory at most, those after a cookie. It returns the next
// cookie and hint; hint is 0 if there are no more.
func (e *Engine) someOf(dir index.ID, after uint64, hint index.ID, fn func(id index.ID, en *index.Entry)) (uint64, index.ID) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	if !e.st.Mu.Ix.Valid(dir) || e.st.DirLocked(dir) != nil {
		return 0, 0
	}
	n, last := 0, index.ID(0)
	e.st.Mu.Ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
		if n == holdingBatch {
			last = hint
			return false
		}
		n++
		after, hint = cookie, id
		fn(id, en)
		return true
	})
	return after, last
}

// maxHoldings bounds the result of HoldingsIn.
const maxHoldings = 1 << 16

// HoldingsIn returns the files and directories of this node in dir whose names come after the given one: at most
// limit and at most 65536, in ascending order. more says whether there are others. Dirs is not set. Each call goes
// through the whole directory, so ask for many names at a time.
func (e *Engine) HoldingsIn(dir, after string, limit int) (list []Holding, more bool) {
	limit = max(0, min(limit, maxHoldings))
	e.st.Mu.Lock()
	id := e.st.Mu.Ix.Walk(dir)
	e.st.Mu.Unlock()
	if id == 0 {
		return nil, false
	}
	first := firstNames{limit: limit + 1}
	var cookie uint64
	var hint index.ID
	for more := true; more; more = hint != 0 {
		cookie, hint = e.someOf(id, cookie, hint, func(id index.ID, en *index.Entry) {
			if name := e.st.Mu.Ix.Name(id); name > after && e.holdsLocked(id, en) {
				first.add(name)
			}
		})
	}
	first.sort()
	names := first.names
	if more = len(names) > limit; more {
		names = names[:limit]
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	for _, name := range names {
		if h, ok := e.Holding(prefix + name); ok {
			list = append(list, h)
		}
	}
	return list, more
}

// firstNames are the first names, in ascending order, of those added.
type firstNames struct {
	limit int
	names []string // up to twice the limit, of which not all are sorted
}

func (f *firstNames) add(name string) {
	if f.names = append(f.names, name); len(f.names) >= 2*f.limit {
		f.sort()
	}
}

func (f *firstNames) sort() {
	slices.Sort(f.names)
	f.names = f.names[:min(len(f.names), f.limit)]
}
