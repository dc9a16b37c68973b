package tiers

import (
	"path"
	"strings"
)

// DefaultTempPatterns are the names that engines give to files which they will
// rename: vLLM and llm-d "<hash>.bin_<n>.tmp", SGLang "<name>.tmp.<pid>...",
// LMCache "<name>.tmp", safetensors ".tmpXXXXXX", LMCache relative_tmp_dir "tmp/".
var DefaultTempPatterns = []string{"*.tmp", "*.tmp.*", ".tmp*", "tmp/"}

// DefaultPlainPatterns are the names that programs give to lock files.
var DefaultPlainPatterns = []string{"*.lock", "*.lck", "*.pid"}

// nameMatcher decides whether a name matches one of some patterns. One that ends in a
// slash names a directory and covers all below it; the others match the last
// component, as path.Match does.
type nameMatcher struct {
	dirs     []string
	suffixes []string // "*x"
	patterns []string
}

func newNameMatcher(patterns []string) nameMatcher {
	var m nameMatcher
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

// name reports whether the last component of a path matches.
func (m *nameMatcher) name(name string) bool {
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

// dir reports whether a directory of that name makes all below it temporary.
func (m *nameMatcher) dir(name string) bool {
	for _, d := range m.dirs {
		if d == name {
			return true
		}
	}
	return false
}
