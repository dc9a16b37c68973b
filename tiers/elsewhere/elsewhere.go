package elsewhere

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

const (
	// listedFor is how long a listing of the names that others have in a directory is reused.
	// listedBefore is how long it fills the gaps of a later listing that is not complete.
	listedFor    = time.Second
	listedBefore = time.Minute

	// removeWait is the longest wait for the names that others have in a directory to be removed.
	removeWait = 250 * time.Millisecond

	// listTime bounds the time to make a listing. No caller waits that long.
	listTime = 10 * time.Second

	// maxListed bounds the names of one listing, and maxListings the number of listings.
	maxListed   = 1 << 18
	maxListings = 4
)

// listings has the latest listings of the names that others have, by path of the directory.
type listings struct {
	mu   sync.Mutex
	list map[string]*listing
}

// listing has the names in one directory that have come so far. When done is closed, it has all of them.
type listing struct {
	made   time.Time
	done   chan struct{}
	before []state.Dirent // the names of the listing before this one
	mu     sync.Mutex
	names  []state.Dirent // when done is closed: sorted, and each once
}

// Elsewhere lists the names in a directory that other nodes have, in ascending order. Names of this node are among
// them if other nodes have them, too. Only Name and Mode are set. It waits for the other nodes, at most for
// Options.ListWait and until ctx ends. For nodes that have not answered by then, it returns their names of the
// listing before. A listing is reused for a second. The caller must not change it.
func (el *elsewhere) Elsewhere(ctx context.Context, dir index.ID) []state.Dirent {
	if el.Remote == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, el.Opts.ListWait)
	defer cancel()
	path, shared := el.sharedDir(ctx, dir)
	el.Mu.Lock()
	if !shared || el.Mu.Closed {
		el.Mu.Unlock()
		return nil
	}
	l, first := el.listings.get(path, el.Opts.Now())
	if first {
		el.Work.Go(func() { el.listElsewhere(path, l) }) // ends when State.Ctx does
	}
	el.Mu.Unlock()
	select {
	case <-l.done:
		return l.names
	case <-ctx.Done():
	}
	return el.listedSoFar(path, l)
}

// sharedDir returns the path of a directory, and whether other nodes have it, too. It asks them if this node does not
// know.
func (el *elsewhere) sharedDir(ctx context.Context, dir index.ID) (path string, shared bool) {
	if dir == index.Root {
		return "", true
	}
	var unknown []string
	el.Mu.Lock()
	linked := el.Mu.Ix.Valid(dir) && el.Mu.Ix.Linked(dir)
	if linked {
		path, unknown = el.Mu.Ix.Path(dir), el.UnknownDirsLocked(dir)
	}
	el.Mu.Unlock()
	if !linked {
		return "", false
	}
	el.Ask(ctx, unknown)
	_, shared = el.Locate(path)
	return path, shared
}

// listed returns what other nodes have under a name that one of them has listed. said is what that one says; it counts
// if this node does not know of the name by itself, unless a grave voids it.
func (el *elsewhere) listed(path string, said *driver.Located) (driver.Located, bool) {
	l, ok := el.Locate(path)
	if ok || el.Asker == nil || !el.Asker.Unknown(path) {
		return l, ok
	}
	return el.right(*said, said.Seq >= el.Far.Buried(path))
}

// get returns the listing of a directory. first: the caller must make it.
func (c *listings) get(path string, now time.Time) (l *listing, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, l := range c.list {
		if age := now.Sub(l.made); age < 0 || age > listedBefore {
			delete(c.list, p)
		}
	}
	old := c.list[path]
	if old != nil && now.Sub(old.made) <= listedFor {
		return old, false
	}
	l = &listing{made: now, done: make(chan struct{})}
	if old != nil {
		l.before = old.soFar()
	}
	if c.list == nil {
		c.list = map[string]*listing{}
	}
	if old != nil || len(c.list) < maxListings {
		c.list[path] = l
	}
	return l, true
}

// soFar returns the names of a listing. Until it is complete, those of the listing before are added.
func (l *listing) soFar() []state.Dirent {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		return l.names
	default:
	}
	return inOrder(append(slices.Clone(l.names), l.before...))
}

// inOrder sorts names and removes duplicates.
func inOrder(names []state.Dirent) []state.Dirent {
	slices.SortStableFunc(names, func(a, b state.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(names, func(a, b state.Dirent) bool { return a.Name == b.Name })
}

// listedSoFar is soFar without the names that no node has any more, as far as this node knows.
func (el *elsewhere) listedSoFar(path string, l *listing) []state.Dirent {
	prefix := prefixOf(path)
	return slices.DeleteFunc(slices.Clone(l.soFar()), func(d state.Dirent) bool {
		_, ok := el.Locate(prefix + d.Name)
		return !ok && (el.Asker == nil || !el.Asker.Unknown(prefix+d.Name))
	})
}

// prefixOf returns the part of a path before a name in the directory.
func prefixOf(dir string) string {
	if dir == "" {
		return ""
	}
	return dir + "/"
}

// listElsewhere makes a listing. It leaves out names that the location index should know and does not:
// they were removed, or their holder has only just announced them.
func (el *elsewhere) listElsewhere(path string, made *listing) {
	ctx, cancel := context.WithTimeout(el.Ctx, listTime)
	defer cancel()
	prefix, told := prefixOf(path), 0
	err := el.Far.List(ctx, path, func(name string, said *driver.Located) bool {
		if block.CheckName(name) != nil || prefix == "" && name == block.Reserved {
			return true
		}
		if l, ok := el.listed(prefix+name, said); ok {
			told++
			made.mu.Lock()
			made.names = append(made.names, state.Dirent{Mode: l.Mode, Name: name})
			made.mu.Unlock()
		}
		return told < maxListed
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		el.Log.Debug("listing of what others have", zap.String("dir", path), zap.Error(err))
	}
	made.mu.Lock()
	defer made.mu.Unlock()
	made.names = inOrder(made.names)
	made.before = nil
	close(made.done)
}

// RefElsewhere finds a name of a directory as Lookup does, and counts one reference by the
// kernel. It grants no lease. It returns false if the name is absent, or not the same for all callers, or if other nodes
// must be asked about it; then the kernel looks it up.
func (el *elsewhere) RefElsewhere(dir index.ID, name string) (state.Attr, bool) {
	var g state.Gone
	defer el.Finish(&g)
	el.Mu.Lock()
	defer el.Mu.Unlock()
	defer el.TellOutdatedLocked(&g)
	if el.DirLocked(dir) != nil {
		return state.Attr{}, false
	}
	id := el.FindLocked(dir, name)
	if id == 0 || el.ExpiredLocked(id) {
		return state.Attr{}, false
	}
	en := el.Mu.Ix.At(id)
	if !en.Committed() {
		return state.Attr{}, false
	}
	en.Lookups++
	return el.names.AttrLocked(id, en), true
}
