package publish

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// defaultTemplate is the native layout.
const defaultTemplate = "{group}/{hash}"

// kindOf says what a piece of a template stands for.
type kindOf uint8

const (
	literal kindOf = iota
	groupField
	hashField
	partField // of the hash
	rankField
)

// piece is a piece of a template.
type piece struct {
	kind     kindOf
	text     []byte // of a literal
	from, to int    // of a part of the hash; to is -1 where it goes to its end
}

// template reads the group and the hash out of a path.
type template struct {
	pieces []piece
}

// parseTemplate parses text such as "m_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin".
func parseTemplate(text string) (*template, error) {
	t := &template{}
	whole := false
	for rest := text; rest != ""; {
		open := strings.IndexAny(rest, "{}")
		if open != 0 {
			if open < 0 {
				open = len(rest)
			}
			t.pieces = append(t.pieces, piece{kind: literal, text: []byte(rest[:open])})
			rest = rest[open:]
			continue
		}
		end := strings.IndexByte(rest, '}')
		if rest[0] == '}' || end < 0 {
			return nil, fmt.Errorf("template %q: brace without its pair: %w", text, block.ErrInvalid)
		}
		p, err := parseField(rest[1:end])
		if err != nil {
			return nil, fmt.Errorf("template %q: %w", text, err)
		}
		if n := len(t.pieces); n > 0 && !p.fixed() && !t.pieces[n-1].fixed() {
			return nil, fmt.Errorf("template %q: nothing between two fields tells where one ends: %w", text, block.ErrInvalid)
		}
		whole = whole || p.kind == hashField
		t.pieces = append(t.pieces, p)
		rest = rest[end+1:]
	}
	if !whole {
		return nil, fmt.Errorf("template %q: it lacks {hash}: %w", text, block.ErrInvalid)
	}
	return t, nil
}

// fixed reports whether the length of what p stands for is known.
func (p piece) fixed() bool {
	return p.kind == literal || p.kind == partField && p.to >= 0
}

// parseField parses what stands between braces.
func parseField(name string) (piece, error) {
	switch name {
	case "group":
		return piece{kind: groupField}, nil
	case "hash":
		return piece{kind: hashField}, nil
	case "rank":
		return piece{kind: rankField}, nil
	}
	p := piece{kind: partField, to: -1}
	part, ok := strings.CutPrefix(name, "hash:")
	from, to, ok2 := strings.Cut(part, ":")
	if !ok || !ok2 {
		return p, fmt.Errorf("no field is called {%s}: %w", name, block.ErrInvalid)
	}
	var err1, err2 error
	if from != "" {
		p.from, err1 = strconv.Atoi(from)
	}
	if to != "" {
		p.to, err2 = strconv.Atoi(to)
	}
	if err := errors.Join(err1, err2); err != nil || p.from < 0 || to != "" && p.to <= p.from || p.to > block.MaxName {
		return p, fmt.Errorf("{%s}: want {hash:FROM:TO} with numbers, FROM below TO: %w", name, block.ErrInvalid)
	}
	return p, nil
}

// match is what a template found in a path; its fields are parts of the path.
type match struct {
	path              []byte
	group, hash, rank []byte
}

// match reports whether path fits, and what its fields stand for. Fields never span a slash,
// are never empty, and stand for the same wherever they occur. Of several ways to fit, that with
// the shortest first fields is taken.
func (t *template) match(path []byte) (match, bool) {
	m := match{path: path}
	ok := m.fit(t.pieces, path)
	return m, ok && m.agrees(t.pieces)
}

// fit tries to fit all of rest to pieces.
func (m *match) fit(pieces []piece, rest []byte) bool {
	if len(pieces) == 0 {
		return len(rest) == 0
	}
	p, pieces := &pieces[0], pieces[1:]
	switch p.kind {
	case literal:
		return bytes.HasPrefix(rest, p.text) && m.fit(pieces, rest[len(p.text):])
	case groupField:
		return m.fitField(&m.group, false, pieces, rest)
	case hashField:
		return m.fitField(&m.hash, false, pieces, rest)
	case rankField:
		return m.fitField(&m.rank, true, pieces, rest)
	}
	if n := p.to - p.from; p.to >= 0 { // agrees compares it
		return n <= len(rest) && m.fit(pieces, rest[n:])
	}
	var part []byte
	return m.fitField(&part, false, pieces, rest)
}

// fitField tries all lengths for a field that does not have a value yet.
func (m *match) fitField(field *[]byte, digits bool, pieces []piece, rest []byte) bool {
	if *field != nil {
		return bytes.HasPrefix(rest, *field) && m.fit(pieces, rest[len(*field):])
	}
	limit := bytes.IndexByte(rest, '/')
	if limit < 0 {
		limit = len(rest)
	}
	if digits {
		if i := bytes.IndexFunc(rest[:limit], func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			limit = i
		}
	}
	for n := 1; n <= limit; n++ {
		if n += skip(pieces, rest[n:]); n > limit {
			break
		}
		*field = rest[:n]
		if m.fit(pieces, rest[n:]) {
			return true
		}
	}
	*field = nil
	return false
}

// skip returns how much of rest must go by before pieces can fit, as far as is easily told; more than
// there is if they cannot.
func skip(pieces []piece, rest []byte) int {
	switch {
	case len(pieces) == 0:
		return len(rest)
	case pieces[0].kind != literal:
		return 0
	}
	if i := bytes.Index(rest, pieces[0].text); i >= 0 {
		return i
	}
	return len(rest) + 1
}

// agrees reports whether the fields, put into the template, give the path: the parts of the
// hash are those of the whole.
func (m *match) agrees(pieces []piece) bool {
	rest := m.path
	for _, p := range pieces {
		text := p.text
		switch p.kind {
		case groupField:
			text = m.group
		case hashField:
			text = m.hash
		case rankField:
			text = m.rank
		case partField:
			to := p.to
			if to < 0 {
				to = len(m.hash)
			}
			if p.from >= to || to > len(m.hash) {
				return false
			}
			text = m.hash[p.from:to]
		}
		if !bytes.HasPrefix(rest, text) {
			return false
		}
		rest = rest[len(text):]
	}
	return len(rest) == 0
}
