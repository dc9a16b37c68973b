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
	suffixes []string // "*x"
	patterns []string
}

// New makes a Set. A pattern that path.Match does not take matches nothing.
func New(patterns []string) Set {
	var m Set
	for _, p := range patterns {
		switch {
		case strings.HasSuffix(p, "/"):
			m.dirs = append(m.dirs, strings.TrimSuffix(p, "/"))
		case strings.HasPrefix(p, "*") && !strings.ContainsAny(p[1:], `*?[\`):
			m.suffixes = append(m.suffixes, p[1:])
		default:
			m.patterns = append(m.patterns, p)
		}
	}
	return m
}

// Name reports whether the last component of a path matches.
func (m *Set) Name(name string) bool {
	for _, s := range m.suffixes {
		if strings.HasSuffix(name, s) {
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
