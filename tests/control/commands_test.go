package control

import (
	"strings"
	"testing"
)

// wantLine fails unless one line of text has all words.
func wantLine(t testing.TB, text string, words ...string) {
	t.Helper()
	for line := range strings.Lines(text) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return
		}
	}
	t.Errorf("no line with %q in:\n%s", words, text)
}
