package sglang

import (
	"cmp"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// evictor is the LRU evictor of the file back-end, which is off unless
// SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE is set. At its start it reads the
// directory and takes the order of modification for that of use.
type evictor struct {
	dir   string
	max   int64 // bytes
	total int64
	order []string // names, the oldest first
	size  map[string]int64
}

const evictionRatio = 0.9 // of max, to which it evicts

func startEvictor(dir string, max int64) (*evictor, error) {
	e := &evictor{dir: dir, max: max, size: map[string]int64{}}
	entries, err := os.ReadDir(dir) // os.listdir; the sizes are asked for one by one
	if err != nil {
		return nil, err
	}
	mtime := map[string]int64{}
	for _, entry := range entries {
		st, err := replay.Stat(dir + "/" + entry.Name())
		if err != nil {
			return nil, err
		}
		mtime[entry.Name()] = st.Mtim.Nano()
		e.add(entry.Name(), st.Size)
	}
	slices.SortStableFunc(e.order, func(a, b string) int { return cmp.Compare(mtime[a], mtime[b]) })
	return e, nil
}

func (e *evictor) add(name string, size int64) {
	e.order = append(e.order, name)
	e.size[name] = size
	e.total += size
}

// makeRoom removes the oldest files if n more bytes would be too many. A file
// that is not there any more is none the less gone.
func (e *evictor) makeRoom(n int64) (removed []string, err error) {
	if e.total+n <= e.max {
		return nil, nil
	}
	for float64(e.total+n) > evictionRatio*float64(e.max) && len(e.order) > 0 {
		name := e.order[0]
		if err := replay.Unlink(e.dir + "/" + name); err != nil && !errors.Is(err, unix.ENOENT) {
			return removed, err
		}
		e.order = e.order[1:]
		e.total -= e.size[name]
		delete(e.size, name)
		removed = append(removed, name)
	}
	return removed, nil
}
