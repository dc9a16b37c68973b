package publish

import (
	"bytes"
	"fmt"

	"github.com/kvfs/kvfs/tiers/template"
)

// defaultTemplate is the default layout.
const defaultTemplate = "{group}/{hash}"

// parseTemplate parses a template that can read paths.
func parseTemplate(text string) (template.Template, error) {
	t, err := template.Parse([]byte(text))
	if err == nil {
		err = t.Reversible()
	}
	if err != nil {
		return nil, fmt.Errorf("template %q: %w", text, err)
	}
	return t, nil
}

// match is what a template found in a path; its fields are parts of the path.
type match struct {
	path              []byte
	group, hash, rank []byte
}

// matchPath reports whether path fits t, and the values of its fields. Fields never span a slash,
// are never empty, and have the same value wherever they occur. If path fits in several ways, the
// shortest first fields are taken.
func matchPath(t template.Template, path []byte) (match, bool) {
	m := match{path: path}
	ok := m.fit(t, path)
	return m, ok && m.agrees(t)
}

// fit tries to fit all of rest to pieces.
func (m *match) fit(pieces template.Template, rest []byte) bool {
	if len(pieces) == 0 {
		return len(rest) == 0
	}
	p, pieces := &pieces[0], pieces[1:]
	switch p.Kind {
	case template.Literal:
		return bytes.HasPrefix(rest, p.Text) && m.fit(pieces, rest[len(p.Text):])
	case template.Group:
		return m.fitField(&m.group, false, pieces, rest)
	case template.Hash:
		return m.fitField(&m.hash, false, pieces, rest)
	case template.Rank:
		return m.fitField(&m.rank, true, pieces, rest)
	}
	if n := p.To - p.From; p.To >= 0 { // agrees compares it
		return n <= len(rest) && m.fit(pieces, rest[n:])
	}
	var part []byte
	return m.fitField(&part, false, pieces, rest)
}

// fitField tries all lengths of a field without a value yet.
func (m *match) fitField(field *[]byte, digits bool, pieces template.Template, rest []byte) bool {
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

// skip returns a lower bound of the bytes of rest before pieces can fit; more than len(rest) if
// they cannot.
func skip(pieces template.Template, rest []byte) int {
	switch {
	case len(pieces) == 0:
		return len(rest)
	case pieces[0].Kind != template.Literal:
		return 0
	}
	if i := bytes.Index(rest, pieces[0].Text); i >= 0 {
		return i
	}
	return len(rest) + 1
}

// agrees reports whether the fields, put into the template, give the path: the parts of the hash
// must agree with the whole.
func (m *match) agrees(pieces template.Template) bool {
	rest := m.path
	for _, p := range pieces {
		text := p.Text
		switch p.Kind {
		case template.Group:
			text = m.group
		case template.Hash:
			text = m.hash
		case template.Rank:
			text = m.rank
		case template.Slice:
			to := p.To
			if to < 0 {
				to = len(m.hash)
			}
			if p.From >= to || to > len(m.hash) {
				return false
			}
			text = m.hash[p.From:to]
		}
		if !bytes.HasPrefix(rest, text) {
			return false
		}
		rest = rest[len(text):]
	}
	return len(rest) == 0
}
