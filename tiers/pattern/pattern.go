// Package pattern decides by patterns what the name of a file says about it: that it is temporary, or plain.
package pattern

import (
	"path"
	"slices"
	"strings"
)

// Temp are the names that engines give to files which they will
// rename: vLLM and llm-d "<hash>.bin_<n>.tmp", SGLang "<name>.tmp.<pid>...",
// LMCache "<name>.tmp", safetensors ".tmpXXXXXX", LMCache relative_tmp_dir "tmp/".
var Temp = []string{"*.tmp", "*.tmp.*", ".tmp*", "tmp/"}

// Plain are the names that programs give to lock files.
var Plain = []string{"*.lock", "*.lck", "*.pid"}

// Set decides whether a name matches one of some patterns. One that ends in a
// slash names a directory and covers all below it; the others match the last
// component, as path.Match does.
type Set struct {
	dirs     []string
	globs    [][]string // patterns that have no other wildcard than *: the parts between
	patterns []string
}

// New makes a Set. A pattern that path.Match does not take matches nothing.
func New(patterns []string) Set {
	var m Set
	for _, p := range patterns {
		switch {
		case strings.HasSuffix(p, "/"):
			m.dirs = append(m.dirs, strings.TrimSuffix(p, "/"))
		case !strings.ContainsAny(p, `?[\`):
			m.globs = append(m.globs, strings.Split(p, "*"))
		default:
			m.patterns = append(m.patterns, p)
		}
	}
	return m
}

// Name reports whether the last component of a path matches.
func (m *Set) Name(name string) bool {
	for _, parts := range m.globs {
		if matches(parts, name) {
			return true
		}
	}
	for _, p := range m.patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return false
}

// Dir reports whether a directory of that name makes all below it temporary.
func (m *Set) Dir(name string) bool {
	return slices.Contains(m.dirs, name)
}

// matches reports whether a name has the parts in their order, the first at its begin and the last at its end. It is
// path.Match without the price: each look-up of a name that is not there comes here.
func matches(parts []string, name string) bool {
	last := len(parts) - 1
	if last == 0 {
		return name == parts[0]
	}
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	name = name[len(parts[0]):]
	for _, part := range parts[1:last] {
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return strings.HasSuffix(name, parts[last])
}
