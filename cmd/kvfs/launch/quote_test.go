package launch

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestQuote shows that a shell splits quoted words into the same words.
func TestQuote(t *testing.T) {
	for _, words := range [][]string{
		{"a"}, {"a", "b c", ""}, {"it's", `"x"`, "$HOME", "`x`", `\`, "*", "~", "#", "!"}, {"-n", "--x=y", "a/b:c,d"},
		{"A=b", "C=d"}, {"two\nlines\t"}, {"üñ", "%s"}, {`{"a": ["b"]}`},
	} {
		line := Quote(words...)
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+line).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, words) {
			t.Errorf("%q: a shell makes %q of %s, %v", words, got, line, err)
		}
	}
	if got := Quote("A=b", "C=d"); got != "'A=b' C=d" {
		t.Errorf("a program whose name looks like an assignment: %s", got)
	}
}

// FuzzSplitScript shows that what counts as plain words is what a shell makes of
// the text: quoted again, it splits the same.
func FuzzSplitScript(f *testing.F) {
	for _, seed := range []string{"a b", "a 'b c' \"d e\"f", "''", "a'b", "a\\ b", "$x", "  x  ", "a''b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words, simple := splitScript(text)
		if !simple {
			return
		}
		again, simple := splitScript(Quote(words...))
		if hasQuote := strings.Contains(text, `"`) && strings.Contains(text, "'"); !simple && hasQuote {
			return // a word with a single quote in it is written with a backslash
		}
		if !simple || !slices.Equal(again, words) {
			t.Errorf("%q: got %q, and then %q, %v", text, words, again, simple)
		}
	})
}
