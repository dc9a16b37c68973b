package catalog

import (
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/driver"
)

// mostClasses bounds the classes, and so the directories that have blocks.
const mostClasses = 1 << classBits

// class is what many blocks have in common. A class exists as long as it has blocks.
type class struct {
	classKey // constant
	blocks   uint32
}

type classKey struct {
	dir, mode, uid, gid uint32
	expires             int64 // seconds since the epoch; 0: never
}

const second = int64(time.Second)

// seconds rounds up to seconds, as far as nanoseconds can tell them.
func seconds(nanos int64) int64 {
	return min(nanos/second+min(nanos%second, 1), math.MaxInt64/second)
}

// dir is a directory. It exists as long as a class or a directory in it does. The root has number 0
// and exists always.
type dir struct {
	hash   uint64 // of its path
	seq    uint64 // of the block from which the attributes are
	parent uint32
	refs   uint32 // classes and directories in it
	attrs  driver.DirAttrs
}

// tree is the directories and classes.
type tree struct {
	seed    maphash.Seed // constant
	most    uint32       // classes; constant
	classes list[class]  // guarded by mu, but see list.at

	mu struct {
		sync.RWMutex
		dirs    list[dir]
		byHash  map[uint64]uint32   // number of a directory
		byClass map[classKey]uint32 // number of a class
	}
}

func (t *tree) init(seed maphash.Seed) {
	t.seed, t.most = seed, mostClasses
	t.mu.byHash, t.mu.byClass = map[uint64]uint32{}, map[classKey]uint32{}
	t.mu.dirs.add(chunkItems) // the root
}

// parentOf returns the directory of a path; "" is the root.
func parentOf(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// enter counts a block and returns its class. dirs are the directories above it, from the
// outermost. ok is false if there are too many classes.
func (t *tree) enter(path string, e *Entry, dirs []driver.DirAttrs) (n uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := classKey{t.dirLocked(parentOf(path), e.Seq, dirs), e.Mode, e.UID, e.GID, seconds(e.Expires)}
	if n, ok = t.mu.byClass[k]; !ok {
		if n, ok = t.classes.add(t.most); !ok {
			t.sweepLocked(k.dir)
			return 0, false
		}
		t.classes.at(n).classKey = k
		t.mu.byClass[k] = n
		t.mu.dirs.at(k.dir).refs++
	}
	t.classes.at(n).blocks++
	return n, true
}

// dirLocked returns the number of a directory, which it makes if need be, and updates the
// attributes of it and those above. A new one has no refs yet.
func (t *tree) dirLocked(path string, seq uint64, dirs []driver.DirAttrs) uint32 {
	if path == "" {
		return 0
	}
	hash := maphash.String(t.seed, path)
	depth := strings.Count(path, "/")
	n, ok := t.mu.byHash[hash]
	if !ok {
		parent := t.dirLocked(parentOf(path), seq, dirs)
		n, _ = t.mu.dirs.add(1 << 31) // far more than classes
		d := t.mu.dirs.at(n)
		d.hash, d.parent = hash, parent
		t.mu.dirs.at(parent).refs++
		t.mu.byHash[hash] = n
	}
	for at := n; at != 0; depth-- {
		d := t.mu.dirs.at(at)
		if depth < len(dirs) && seq > d.seq {
			d.seq, d.attrs = seq, dirs[depth]
		}
		at = d.parent
	}
	return n
}

// leave counts a block of a class that is gone.
func (t *tree) leave(n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.classes.at(n)
	if c.blocks--; c.blocks > 0 {
		return
	}
	dir := c.dir
	delete(t.mu.byClass, c.classKey)
	t.classes.free(n)
	t.mu.dirs.at(dir).refs--
	t.sweepLocked(dir)
}

// sweepLocked removes a directory if nothing is in it, and likewise those above.
func (t *tree) sweepLocked(n uint32) {
	for n != 0 && t.mu.dirs.at(n).refs == 0 {
		d := *t.mu.dirs.at(n)
		delete(t.mu.byHash, d.hash)
		t.mu.dirs.free(n)
		t.mu.dirs.at(d.parent).refs--
		n = d.parent
	}
}

// dir returns the attributes of a directory.
func (t *tree) dir(path string) (a driver.DirAttrs, ok bool) {
	hash := maphash.String(t.seed, path)
	t.mu.RLock()
	defer t.mu.RUnlock()
	n, ok := t.mu.byHash[hash]
	if ok {
		a = t.mu.dirs.at(n).attrs
	}
	return a, ok
}

// stats adds to st. A map has room for up to twice its entries, and a byte more for each.
func (t *tree) stats(st *Stats) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	st.Dirs, st.Classes = int64(len(t.mu.byHash)), int64(len(t.mu.byClass))
	st.DirBytes = t.classes.bytes() + t.mu.dirs.bytes() +
		2*st.Dirs*(8+4+1) + 2*st.Classes*(int64(unsafe.Sizeof(classKey{}))+4+1)
}
