package tiers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

const (
	// listedFor is how long a listing of what others have in a directory is used again.
	listedFor = time.Second

	// maxListed bounds the names of one such listing, and maxListings the listings.
	maxListed   = 1 << 18
	maxListings = 4
)

// listings are the latest listings of what others have.
type listings struct {
	mu   sync.Mutex
	list map[string]*listing
}

// listing is one of them. names is set when done is closed.
type listing struct {
	made  time.Time
	done  chan struct{}
	names []Dirent
}

// Elsewhere lists the names in a directory that others have, this node's own among them
// if others have them too, in ascending order; only Name and Mode are set. It asks the
// others, so it blocks, at most as long as ctx; who does not answer is left out. A listing
// is used again for a second. The caller must not change it.
func (e *Engine) Elsewhere(ctx context.Context, dir index.ID) []Dirent {
	if e.remote == nil {
		return nil
	}
	e.mu.Lock()
	path, known := "", dir == index.Root
	if !known && e.mu.ix.Valid(dir) && e.mu.ix.Linked(dir) {
		path = e.mu.ix.Path(dir)
		_, known = e.locate(path)
	}
	e.mu.Unlock()
	if !known {
		return nil
	}
	l, first := e.listings.get(path, e.opts.Now())
	if first {
		l.names = e.listElsewhere(ctx, path)
		if ctx.Err() != nil {
			e.listings.drop(path, l) // others have more time
		}
		close(l.done)
		return l.names
	}
	select {
	case <-l.done:
		return l.names
	case <-ctx.Done():
		return nil
	}
}

// get returns the listing of a directory, and whether the caller is to make it.
func (c *listings) get(path string, now time.Time) (l *listing, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, l := range c.list {
		if age := now.Sub(l.made); age < 0 || age > listedFor {
			delete(c.list, p)
		}
	}
	if l = c.list[path]; l != nil {
		return l, false
	}
	l = &listing{made: now, done: make(chan struct{})}
	if c.list == nil {
		c.list = map[string]*listing{}
	}
	if len(c.list) < maxListings {
		c.list[path] = l
	}
	return l, true
}

// drop forgets a listing.
func (c *listings) drop(path string, l *listing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list[path] == l {
		delete(c.list, path)
	}
}

// listElsewhere asks for a listing. What the location index does not know is left out: it
// was removed, or its holder has only just told of it.
func (e *Engine) listElsewhere(ctx context.Context, path string) []Dirent {
	prefix := path + "/"
	if path == "" {
		prefix = ""
	}
	var names []Dirent
	err := e.far.List(ctx, path, func(name string, _ *Located) bool {
		if block.CheckName(name) != nil || prefix == "" && name == block.Reserved {
			return true
		}
		if l, ok := e.locate(prefix + name); ok {
			names = append(names, Dirent{Mode: l.Mode, Name: name})
		}
		return len(names) < maxListed
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		e.log.Debug("listing of what others have", zap.String("dir", path), zap.Error(err))
	}
	slices.SortFunc(names, func(a, b Dirent) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(names, func(a, b Dirent) bool { return a.Name == b.Name })
}

// RefElsewhere finds a name of a directory as Lookup does, counts one reference by the
// kernel and grants no lease. False: there is no such name, or not for all callers alike.
func (e *Engine) RefElsewhere(dir index.ID, name string) (Attr, bool) {
	var g gone
	defer e.finish(&g)
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.tellOutdatedLocked(&g)
	if e.dirLocked(dir) != nil {
		return Attr{}, false
	}
	id := e.findLocked(dir, name)
	if id == 0 || len(e.mu.shadows[nameKey{dir, name}]) > 0 || e.expiredLocked(id) {
		return Attr{}, false
	}
	en := e.mu.ix.At(id)
	if en.Flags&flagUncommitted != 0 {
		return Attr{}, false
	}
	en.Lookups++
	return e.attrLocked(id, en), true
}
