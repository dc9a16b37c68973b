package main

import (
	"strings"

	"github.com/kvfs/kvfs/fs/query"
)

// shown returns a name or a text of others as it is printed: what a terminal would obey, what is
// no character, and backslashes are escaped as in Go.
func shown(s string) string { return query.Escape(s) }

// shownLines is shown for a text of several lines, in which names are escaped already: its backslashes stay.
func shownLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		parts := strings.Split(line, `\`)
		for j := range parts {
			parts[j] = shown(parts[j])
		}
		lines[i] = strings.Join(parts, `\`)
	}
	return strings.Join(lines, "\n")
}
