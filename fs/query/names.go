package query

import (
	"bytes"

	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of requests. Requests of 16 MiB cannot have many more names; what counts is how long a
// request may keep the engine busy.
const (
	maxNames     = 1_000_000 // names in a request, ranks included
	maxRanks     = 1024
	maxRequestID = 128 // bytes
)

// batch is how many names the engine is asked for at a time: enough that the cost of asking
// does not count, few enough that paths and answers stay in the caches of the processor.
const batch = 256

// names is which blocks a request names.
type names struct {
	list     string   // pointer to the list: "/keys" or "/hashes"
	items    [][]byte // paths or hashes, pieces of the request
	escaped  bool     // the items came, and paths in answers go, as Escape makes them
	raw      []byte   // instead of items: hashes of size bytes each, one after another
	size     int
	count    int
	hex      bool   // hashes are bytes, to be written in hexadecimal
	group    []byte // of hashes
	template []byte // of hashes; nil: the native one
	ranks    int
}

// item returns the i-th path or hash.
func (n *names) item(i int) []byte {
	if n.raw != nil {
		return n.raw[i*n.size : (i+1)*n.size]
	}
	return n.items[i]
}

// keys reports whether paths are given, not hashes.
func (n *names) keys() bool { return n.list == "/keys" }

// parts returns the template.
func (n *names) parts() ([]part, *requestError) {
	if n.template == nil {
		return nativeTemplate, nil
	}
	return parseTemplate(n.template)
}

// unescape makes names of items that are escaped.
func (n *names) unescape() *requestError {
	for i := 0; n.escaped && i < len(n.items); i++ {
		if bytes.IndexByte(n.items[i], '\\') < 0 {
			continue
		}
		name, err := Unescape(string(n.items[i]))
		if err != nil {
			return faulty(element(n.list, i), "%s: a backslash begins none of the escapes of Go", quoted(n.items[i]))
		}
		n.items[i] = []byte(name)
	}
	return nil
}

// shown returns a path as answers have it.
func (n *names) shown(path string) string {
	if n.escaped {
		return Escape(path)
	}
	return path
}

// prepare returns what makes paths of the items, nil if they are paths, and checks them all.
func (n *names) prepare() (*layout, *requestError) {
	if n.keys() {
		for i, path := range n.items {
			if why := checkPath(path); why != "" {
				return nil, faulty(element(n.list, i), "%s: %s", quoted(path), why)
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
		return nil, faulty("/ranks", "%d blocks of %d ranks are more than %d files", n.count, n.ranks, maxNames)
	}
	return l, n.check(l)
}

// check looks for hashes that give paths that cannot be. What it finds does not depend on which
// group is in l, as no group ends in a component that is "." or "..".
func (n *names) check(l *layout) *requestError {
	if n.raw != nil && n.hex {
		return nil // none is empty, and no digit means something in a path
	}
	var buf []byte
	var why string
	for i := range n.count {
		if why, buf = l.checkHash(n.item(i), buf); why != "" {
			return faulty(element(n.list, i), "%s: %s", quoted(n.item(i)), why)
		}
	}
	return nil
}

// appendPath appends the path of an item to a buffer. It reports false if there is no such path.
// A path that was given is returned as it stands and the buffer is left alone.
func (n *names) appendPath(buf []byte, l *layout, i, rank int) (path, rest []byte, ok bool) {
	if l == nil {
		item := n.items[i]
		return item, buf, len(item) <= block.MaxPath
	}
	start := len(buf)
	buf, ok = l.appendPath(buf, n.item(i), rank)
	return buf[start:len(buf):len(buf)], buf, ok
}
