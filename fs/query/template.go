package query

import (
	"bytes"
	"strconv"

	"github.com/kvfs/kvfs/tiers/block"
)

// maxPartEnd bounds the positions in {hash:from:to}: longer hashes cannot be a name.
const maxPartEnd = block.MaxPath

// part is one step of a template.
type part struct {
	kind     partKind
	text     []byte // of a literal
	from, to int    // of a slice
}

type partKind uint8

const (
	literal   partKind = iota
	groupName          // {group}
	rankName           // {rank}
	wholeHash          // {hash}
	hashSlice          // {hash:from:to}
)

// nativeTemplate is {group}/{hash}.
var nativeTemplate = []part{{kind: groupName}, {kind: literal, text: []byte("/")}, {kind: wholeHash}}

// parseTemplate turns the text of a template into its parts, which keep pieces of it.
func parseTemplate(text []byte) ([]part, *requestError) {
	const field = "/template"
	if len(text) > block.MaxPath {
		return nil, faulty(field, "has %d bytes, a path has at most %d", len(text), block.MaxPath)
	}
	var parts []part
	named := false
	for at := 0; at < len(text); {
		n := bytes.IndexAny(text[at:], "{}")
		if n < 0 {
			n = len(text) - at
		}
		if n > 0 {
			parts = append(parts, part{kind: literal, text: text[at : at+n]})
			at += n
			continue
		}
		if text[at] == '}' {
			return nil, faulty(field, "the } at byte %d has no { before it", at)
		}
		length := bytes.IndexByte(text[at:], '}')
		if length < 0 {
			return nil, faulty(field, "the { at byte %d is not closed", at)
		}
		p, ok := parsePlaceholder(text[at+1 : at+length])
		if !ok {
			return nil, faulty(field, "%s at byte %d is none of {group}, {rank}, {hash}, {hash:from:to}",
				quoted(text[at:at+length+1]), at)
		}
		named = named || p.kind == wholeHash || p.kind == hashSlice
		parts = append(parts, p)
		at += length + 1
	}
	if !named {
		return nil, faulty(field, "has no {hash}: all blocks would have one name")
	}
	return parts, nil
}

// parsePlaceholder parses what is between braces.
func parsePlaceholder(text []byte) (part, bool) {
	switch string(text) {
	case "group":
		return part{kind: groupName}, true
	case "rank":
		return part{kind: rankName}, true
	case "hash":
		return part{kind: wholeHash}, true
	}
	rest, ok := bytes.CutPrefix(text, []byte("hash:"))
	if !ok {
		return part{}, false
	}
	first, second, _ := bytes.Cut(rest, []byte(":"))
	from, err := strconv.ParseUint(string(first), 10, 31)
	to, err2 := strconv.ParseUint(string(second), 10, 31)
	if err != nil || err2 != nil || from >= to || to > maxPartEnd {
		return part{}, false
	}
	return part{kind: hashSlice, from: int(from), to: int(to)}, true
}

// uses reports whether one of the parts is of a kind.
func uses(parts []part, kind partKind) bool {
	for _, p := range parts {
		if p.kind == kind {
			return true
		}
	}
	return false
}

// layout is a template with its group put in: what makes paths of the hashes of one group.
type layout struct {
	parts  []part
	ranked bool // the ranks have different paths
	never  bool // the paths are all too long
	hex    bool // hashes are bytes, to be written in hexadecimal
	text   []byte
}

// newLayout puts a group into a template. It fails if the paths that come of it cannot be,
// whatever the hash. groupField is the pointer to what gave the group.
func newLayout(parts []part, group []byte, groupField string) (*layout, *requestError) {
	l := &layout{ranked: uses(parts, rankName)}
	if len(group) == 0 && uses(parts, groupName) {
		if len(parts) != len(nativeTemplate) || &parts[0] != &nativeTemplate[0] {
			return nil, faulty(groupField, "is missing, and the template has {group}")
		}
		parts = parts[2:] // blocks without a group lie directly below the mount
	}
	if len(group) > 0 && uses(parts, groupName) {
		if why := checkPath(group); why != "" {
			return nil, faulty(groupField, "%s: %s", quoted(group), why)
		}
	}
	size := 0
	for _, p := range parts {
		if p.kind == groupName {
			p = part{kind: literal, text: group}
		}
		size += len(p.text)
		last := len(l.parts) - 1
		if size > block.MaxPath {
			l.never = true
			return l, nil
		}
		if p.kind == literal && last >= 0 && l.parts[last].kind == literal {
			l.parts[last].text = bytes.Join([][]byte{l.parts[last].text, p.text}, nil)
			continue
		}
		l.parts = append(l.parts, p)
	}
	if why := checkPath(l.sample()); why != "" {
		return nil, faulty("/template", "%s", why)
	}
	return l, nil
}

// sample returns a path in which a letter stands for each part of the hash.
func (l *layout) sample() []byte {
	var path []byte
	for _, p := range l.parts {
		if p.kind == literal {
			path = append(path, p.text...)
		} else {
			path = append(path, 'x')
		}
	}
	return path
}

// appendPath appends the path of a hash to dst. It reports false, and appends nothing, if the
// hash is too short for a part or the path too long: then there is no such block.
func (l *layout) appendPath(dst, hash []byte, rank int) ([]byte, bool) {
	start := len(dst)
	if l.never {
		return dst, false
	}
	if l.hex {
		l.text = appendHex(l.text[:0], hash)
		hash = l.text
	}
	for i := range l.parts {
		p := &l.parts[i]
		piece := p.text
		switch p.kind {
		case wholeHash:
			piece = hash
		case hashSlice:
			if len(hash) < p.to {
				return dst[:start], false
			}
			piece = hash[p.from:p.to]
		case rankName:
			dst = strconv.AppendInt(dst, int64(rank), 10)
		}
		if len(dst)-start+len(piece) > block.MaxPath {
			return dst[:start], false
		}
		dst = append(dst, piece...)
	}
	return dst, true
}

// checkHash reports why no path can be made of a hash; empty if one can. Most hashes have no
// byte that means something in a path; then there is nothing to look at, as the sample was good.
func (l *layout) checkHash(hash, scratch []byte) (why string, buf []byte) {
	if len(hash) == 0 {
		return "a hash may not be empty", scratch
	}
	if l.hex || bytes.IndexByte(hash, '/') < 0 && bytes.IndexByte(hash, '.') < 0 && bytes.IndexByte(hash, 0) < 0 {
		return "", scratch
	}
	path, ok := l.appendPath(scratch[:0], hash, 0)
	if !ok {
		return "", path
	}
	return checkPath(path), path
}

// checkPath reports why nothing can have a path below the mount; empty if something can. Names
// that are only too long are no fault: there is nothing of such a name.
func checkPath(path []byte) string {
	switch {
	case len(path) == 0:
		return "a path may not be empty"
	case path[0] == '/':
		return "a path below the mount does not begin with a slash"
	case bytes.IndexByte(path, 0) >= 0:
		return "a path may not have a NUL byte"
	}
	for {
		end := bytes.IndexByte(path, '/')
		name := path
		if end >= 0 {
			name = path[:end]
		}
		switch string(name) {
		case "":
			return "a path may not have an empty component, nor end in a slash"
		case ".", "..":
			return `a path may not have "." or ".." in it`
		}
		if end < 0 {
			return ""
		}
		path = path[end+1:]
	}
}
