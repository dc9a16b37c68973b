package query

import (
	"bytes"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/template"
)

// Limits of requests. A request of 16 MiB cannot have many more names. The limits bound how long a
// request keeps the engine busy.
const (
	maxNames     = 1_000_000 // names in a request, ranks included
	maxRanks     = hybrid.MaxRanks
	maxRequestID = 128 // bytes
)

// batch is how many names one call of the engine gets. It is large enough that the cost of a call, and of a question to other nodes,
// does not matter, and small enough that paths and answers stay in the processor's caches.
const batch = 1024

// nameList is the list of blocks that a request names.
type nameList struct {
	list     string   // pointer to the list: "/keys" or "/hashes"
	items    [][]byte // paths or hashes, pieces of the request
	escaped  bool     // the items, and paths in answers, are in the form of Escape
	raw      []byte   // instead of items: hashes of size bytes each, one after another
	size     int
	count    int
	hex      bool   // hashes are bytes; paths have them in hexadecimal
	group    []byte // of hashes
	template []byte // of hashes; nil: the native one
	ranks    int
}

// item returns the i-th path or hash.
func (n *nameList) item(i int) []byte {
	if n.raw != nil {
		return n.raw[i*n.size : (i+1)*n.size]
	}
	return n.items[i]
}

// keys reports whether the items are paths, not hashes.
func (n *nameList) keys() bool { return n.list == "/keys" }

// parts returns the template.
func (n *nameList) parts() (template.Template, *strict.Error) {
	if n.template == nil {
		return nativeTemplate, nil
	}
	t, err := template.Parse(n.template)
	if err != nil {
		return nil, strict.Faulty("/template", "%v", err)
	}
	return t, nil
}

// unescape replaces escaped items by their names.
func (n *nameList) unescape() *strict.Error {
	for i := 0; n.escaped && i < len(n.items); i++ {
		if bytes.IndexByte(n.items[i], '\\') < 0 {
			continue
		}
		name, err := Unescape(string(n.items[i]))
		if err != nil {
			return strict.Faulty(element(n.list, i), "%s: a backslash begins none of the escapes of Go", quoted(n.items[i]))
		}
		n.items[i] = []byte(name)
	}
	return nil
}

// shown returns a path in the form that answers use.
func (n *nameList) shown(path string) string {
	if n.escaped {
		return Escape(path)
	}
	return path
}

// prepare checks all items. It returns the layout that makes their paths, nil if they are paths.
func (n *nameList) prepare() (*layout, *strict.Error) {
	if n.keys() {
		for i, path := range n.items {
			if why := checkPath(path); why != "" {
				return nil, strict.Faulty(element(n.list, i), "%s: %s", quoted(path), why)
			}
		}
		return nil, nil
	}
	parts, err := n.parts()
	if err != nil {
		return nil, err
	}
	l, err := newLayout(parts, n.group, "/group")
	if err != nil {
		return nil, err
	}
	l.hex = n.hex
	if !l.ranked {
		n.ranks = 1
	}
	if n.count*n.ranks > maxNames {
		return nil, strict.Faulty("/ranks", "%d blocks of %d ranks are more than %d files", n.count, n.ranks, maxNames)
	}
	return l, n.check(l)
}

// check finds hashes that give impossible paths. The result does not depend on the group in l,
// since no group ends in a component "." or "..".
func (n *nameList) check(l *layout) *strict.Error {
	if n.raw != nil && n.hex {
		return nil // none is empty, and no digit has a meaning in a path
	}
	var buf []byte
	var why string
	for i := range n.count {
		if why, buf = l.checkHash(n.item(i), buf); why != "" {
			return strict.Faulty(element(n.list, i), "%s: %s", quoted(n.item(i)), why)
		}
	}
	return nil
}

// appendPath appends the path of an item to a buffer. It reports false if there is no such path. If
// the item is a path, it returns that path and leaves the buffer alone.
func (n *nameList) appendPath(buf []byte, l *layout, i, rank int) (path, rest []byte, ok bool) {
	if l == nil {
		item := n.items[i]
		return item, buf, len(item) <= block.MaxPath
	}
	start := len(buf)
	buf, ok = l.appendPath(buf, n.item(i), rank)
	return buf[start:len(buf):len(buf)], buf, ok
}
