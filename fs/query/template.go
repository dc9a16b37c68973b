package query

import (
	"bytes"
	"strconv"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/template"
)

// nativeTemplate is {group}/{hash}.
var nativeTemplate = template.Template{{Kind: template.Group}, {Kind: template.Literal, Text: []byte("/")}, {Kind: template.Hash}}

// layout is a template with its group filled in. It makes the paths of the hashes of one group.
type layout struct {
	parts  template.Template
	ranked bool // the ranks have different paths
	never  bool // all paths are too long
	hex    bool // hashes are bytes; paths have them in hexadecimal
	text   []byte
}

// newLayout puts a group into a template. It fails if the paths are impossible for every hash.
// groupField is the pointer to the member with the group.
func newLayout(parts template.Template, group []byte, groupField string) (*layout, *strict.Error) {
	l := &layout{ranked: parts.Has(template.Rank)}
	if len(group) == 0 && parts.Has(template.Group) {
		if len(parts) != len(nativeTemplate) || &parts[0] != &nativeTemplate[0] {
			return nil, strict.Faulty(groupField, "is missing, and the template has {group}")
		}
		parts = parts[2:] // blocks without a group lie directly below the mount
	}
	if len(group) > 0 && parts.Has(template.Group) {
		if why := checkPath(group); why != "" {
			return nil, strict.Faulty(groupField, "%s: %s", quoted(group), why)
		}
	}
	size := 0
	for _, p := range parts {
		if p.Kind == template.Group {
			p = template.Part{Kind: template.Literal, Text: group}
		}
		size += len(p.Text)
		last := len(l.parts) - 1
		if size > block.MaxPath {
			l.never = true
			return l, nil
		}
		if p.Kind == template.Literal && last >= 0 && l.parts[last].Kind == template.Literal {
			l.parts[last].Text = bytes.Join([][]byte{l.parts[last].Text, p.Text}, nil)
			continue
		}
		l.parts = append(l.parts, p)
	}
	if why := checkPath(l.parts.Sample()); why != "" {
		return nil, strict.Faulty("/template", "%s", why)
	}
	return l, nil
}

// appendPath appends the path of a hash to dst. If the hash is too short for a part, or the path
// too long, it reports false and appends nothing. There is no such block then.
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
		piece := p.Text
		switch p.Kind {
		case template.Hash:
			piece = hash
		case template.Slice:
			to := p.To
			if to < 0 {
				to = len(hash)
			}
			if p.From >= to || to > len(hash) {
				return dst[:start], false
			}
			piece = hash[p.From:to]
		case template.Rank:
			dst = strconv.AppendInt(dst, int64(rank), 10)
		}
		if len(dst)-start+len(piece) > block.MaxPath {
			return dst[:start], false
		}
		dst = append(dst, piece...)
	}
	return dst, true
}

// checkHash returns why a hash cannot give a path; empty if it can. Most hashes have no byte with a
// meaning in a path. Then there is nothing to check, since the sample was good.
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

// checkPath returns why no file can have a path below the mount; empty if one can. A name that is
// only too long is no fault: no file has it.
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
