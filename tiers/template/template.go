// Package template is the grammar of templates. A template says where the hash and the group of a
// block stand in its path below the mount: {group}/{hash}. Queries put hashes into templates.
// Events use templates to read the hash and the group from a path.
//
//	{hash}           the hash
//	{hash:from:to}   a part of it, as in Python: numbers; either may be left out
//	{group}          the group
//	{rank}           the number of a worker
//
// Everything else stands for itself. docs/control.md explains templates to users.
package template

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/kvfs/kvfs/tiers/block"
)

// Kind is the kind of a part of a template.
type Kind uint8

// The kinds of parts.
const (
	Literal Kind = iota
	Group        // {group}
	Rank         // {rank}
	Hash         // {hash}
	Slice        // {hash:from:to}
)

// Part is one step of a template.
type Part struct {
	Kind     Kind
	Text     []byte // of a literal, which is not empty
	From, To int    // of a slice, From below To; To is -1 if the slice goes to the end of the hash
}

// Fixed reports whether the length of p's text in a path is known.
func (p Part) Fixed() bool { return p.Kind == Literal || p.Kind == Slice && p.To >= 0 }

// Template is a text in its parts. At least one is a hash or a slice of it.
type Template []Part

// Error says what is wrong with a template. It does not repeat the template. It is a
// block.ErrInvalid.
type Error struct{ why string }

// Error returns the reason.
func (e *Error) Error() string { return e.why }

// Unwrap returns block.ErrInvalid.
func (e *Error) Unwrap() error { return block.ErrInvalid }

func faulty(format string, args ...any) *Error { return &Error{fmt.Sprintf(format, args...)} }

// Parse parses a template. The result shares memory with text. It fails with *Error.
func Parse(text []byte) (Template, error) {
	if len(text) > block.MaxPath {
		return nil, faulty("has %d bytes, a path has at most %d", len(text), block.MaxPath)
	}
	var t Template
	for at := 0; at < len(text); {
		n := bytes.IndexAny(text[at:], "{}")
		if n < 0 {
			n = len(text) - at
		}
		if n > 0 {
			t = append(t, Part{Kind: Literal, Text: text[at : at+n]})
			at += n
			continue
		}
		if text[at] == '}' {
			return nil, faulty("the } at byte %d has no { before it", at)
		}
		length := bytes.IndexByte(text[at:], '}')
		if length < 0 {
			return nil, faulty("the { at byte %d is not closed", at)
		}
		p, ok := parseField(text[at+1 : at+length])
		if !ok {
			return nil, faulty("%.64q at byte %d is none of {group}, {rank}, {hash}, {hash:from:to}", text[at:at+length+1], at)
		}
		t = append(t, p)
		at += length + 1
	}
	if !t.Has(Hash) && !t.Has(Slice) {
		return nil, faulty("has no {hash}: all blocks would have one name")
	}
	return t, nil
}

// parseField parses the text between braces.
func parseField(text []byte) (Part, bool) {
	switch string(text) {
	case "group":
		return Part{Kind: Group}, true
	case "rank":
		return Part{Kind: Rank}, true
	case "hash":
		return Part{Kind: Hash}, true
	}
	rest, ok := bytes.CutPrefix(text, []byte("hash:"))
	from, to, ok2 := bytes.Cut(rest, []byte(":"))
	p := Part{Kind: Slice}
	var ok3, ok4 bool
	p.From, ok3 = parsePosition(from, 0)
	p.To, ok4 = parsePosition(to, -1)
	return p, ok && ok2 && ok3 && ok4 && (p.To < 0 || p.From < p.To)
}

// parsePosition parses a position in a hash. It returns absent if there is none. No hash is longer
// than a path.
func parsePosition(text []byte, absent int) (int, bool) {
	if len(text) == 0 {
		return absent, true
	}
	n, err := strconv.ParseUint(string(text), 10, 31)
	return int(n), err == nil && n <= block.MaxPath
}

// Has reports whether one of the parts is of a kind.
func (t Template) Has(kind Kind) bool {
	for _, p := range t {
		if p.Kind == kind {
			return true
		}
	}
	return false
}

// Reversible returns nil if t can read the group and the hash from a path, else the reason as
// *Error. A field that is read from a path is part of one name.
func (t Template) Reversible() error {
	for i, p := range t {
		if i > 0 && !p.Fixed() && !t[i-1].Fixed() {
			return faulty("has two fields with nothing between them that tells where the first ends")
		}
		if p.To > block.MaxName || p.From >= block.MaxName {
			return faulty("has a part of the hash that ends after byte %d, and no name is longer", block.MaxName)
		}
	}
	if !t.Has(Hash) {
		return faulty("has only parts of the hash; {hash} itself must be there")
	}
	return nil
}

// Sample returns a path in which a letter stands for each field.
func (t Template) Sample() []byte {
	var path []byte
	for _, p := range t {
		if p.Kind == Literal {
			path = append(path, p.Text...)
		} else {
			path = append(path, 'x')
		}
	}
	return path
}
