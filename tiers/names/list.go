package names

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
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
func (nm *Names) Elsewhere(ctx context.Context, dir index.ID) []state.Dirent {
	if nm.Remote == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nm.Opts.ListWait)
	defer cancel()
	path, shared := nm.sharedDir(ctx, dir)
	nm.Mu.Lock()
	if !shared || nm.Mu.Closed {
		nm.Mu.Unlock()
		return nil
	}
	l, first := nm.listings.get(path, nm.Opts.Now())
	if first {
		nm.Work.Go(func() { nm.listElsewhere(path, l) }) // ends when State.Ctx does
	}
	nm.Mu.Unlock()
	select {
	case <-l.done:
		return l.names
	case <-ctx.Done():
	}
	return nm.listedSoFar(path, l)
}

// sharedDir returns the path of a directory, and whether other nodes have it, too. It asks them if this node does not
// know.
func (nm *Names) sharedDir(ctx context.Context, dir index.ID) (path string, shared bool) {
	if dir == index.Root {
		return "", true
	}
	var unknown []string
	nm.Mu.Lock()
	linked := nm.Mu.Ix.Valid(dir) && nm.Mu.Ix.Linked(dir)
	if linked {
		path, unknown = nm.Mu.Ix.Path(dir), nm.UnknownDirsLocked(dir)
	}
	nm.Mu.Unlock()
	if !linked {
		return "", false
	}
	nm.Ask(ctx, unknown)
	_, shared = nm.Locate(path)
	return path, shared
}

// listed returns what other nodes have under a name that one of them has listed. said is what that one says; it counts
// if this node does not know of the name by itself, unless a grave voids it.
func (nm *Names) listed(path string, said *driver.Located) (driver.Located, bool) {
	l, ok := nm.Locate(path)
	if ok || nm.Asker == nil || !nm.Asker.Unknown(path) {
		return l, ok
	}
	return nm.right(*said, said.Seq >= nm.Far.Buried(path))
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
func (nm *Names) listedSoFar(path string, l *listing) []state.Dirent {
	prefix := prefixOf(path)
	return slices.DeleteFunc(slices.Clone(l.soFar()), func(d state.Dirent) bool {
		_, ok := nm.Locate(prefix + d.Name)
		return !ok && (nm.Asker == nil || !nm.Asker.Unknown(prefix+d.Name))
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
func (nm *Names) listElsewhere(path string, made *listing) {
	ctx, cancel := context.WithTimeout(nm.Ctx, listTime)
	defer cancel()
	prefix, told := prefixOf(path), 0
	err := nm.Far.List(ctx, path, func(name string, said *driver.Located) bool {
		if block.CheckName(name) != nil || prefix == "" && name == block.Reserved {
			return true
		}
		if l, ok := nm.listed(prefix+name, said); ok {
			told++
			made.mu.Lock()
			made.names = append(made.names, state.Dirent{Mode: l.Mode, Name: name})
			made.mu.Unlock()
		}
		return told < maxListed
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		nm.Log.Debug("listing of what others have", zap.String("dir", path), zap.Error(err))
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
func (nm *Names) RefElsewhere(dir index.ID, name string) (state.Attr, bool) {
	var g state.Gone
	defer nm.Finish(&g)
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	if nm.DirLocked(dir) != nil {
		return state.Attr{}, false
	}
	id := nm.FindLocked(dir, name, &g)
	if id == 0 || nm.ExpiredLocked(id) {
		return state.Attr{}, false
	}
	en := nm.Mu.Ix.At(id)
	if !en.Committed() {
		return state.Attr{}, false
	}
	nm.ApplyLocked(catalog.Referred{ID: id})
	return nm.AttrLocked(id, en), true
}
