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
