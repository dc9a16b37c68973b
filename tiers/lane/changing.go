package lane

import (
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// changing is the names that the tier and the index may understand differently, because removals and updates are queued
// or being done. Options.Lock guards it.
type changing struct {
	naming map[block.Key]int // removals and updates, by key
	above  map[string]int    // likewise, by directory above such a key; nil unless the tier is a driver.Finder
	moving []*Tree           // in keyed, oldest first: their names are not in naming yet
}

// count adds n to the counts of the names of op.
func (c *changing) count(op *keyedOp, n int) {
	keys := []block.Key{op.From, op.To}
	if op.Attrs == nil {
		keys = keys[:1]
	}
	for _, key := range keys {
		count(c.naming, key, n)
		if c.above == nil {
			continue
		}
		for dir := above(key.Path()); dir != ""; dir = above(dir) {
			count(c.above, dir, n)
		}
	}
}

// count adds n to the count of key. A map has no counts of 0.
func count[K comparable](m map[K]int, key K, n int) {
	if m[key] += n; m[key] == 0 {
		delete(m, key)
	}
}

// above returns the directory of a path, "" if that is the root.
func above(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// NamingLocked reports whether the tier may mean another block by a key than the index does, because removals
// or updates are queued or being done.
func (c *changing) NamingLocked(key block.Key) bool { return c.naming[key] > 0 || len(c.moving) > 0 }

// UnsettledLocked reports whether queued removals or updates concern a path or anything below it, for a tier that is a
// driver.Finder. Of the Trees, only those from or to there count.
func (c *changing) UnsettledLocked(path string) bool {
	if len(c.naming) > 0 {
		if key, _ := block.ParseKey(path); c.naming[key] > 0 || c.above[path] > 0 {
			return true
		}
	}
	return slices.ContainsFunc(c.moving, func(t *Tree) bool { return meets(path, t.From) || meets(path, t.To) })
}

// meets reports whether a path is the same as another, or above or below it.
func meets(a, b string) bool {
	n := min(len(a), len(b))
	return a[:n] == b[:n] && (len(a) == n || a[n] == '/') && (len(b) == n || b[n] == '/')
}
