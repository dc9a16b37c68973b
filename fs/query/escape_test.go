package query

import (
	"strconv"
	"testing"
	"unicode"
)

// FuzzEscape shows that every name comes back from its escaped form, in which nothing is that a terminal would
// obey, and that a form is refused or means the same again.
func FuzzEscape(f *testing.F) {
	for _, name := range []string{"", "g/a b", "größe/块", "a\nb", `a\nb`, "\xff\\", "\x1b[31m\u009b\u202e", "\ufffd", `\`, `\400`, `\ud800`} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		text := Escape(name)
		for _, r := range text {
			if !unicode.IsPrint(r) {
				t.Errorf("%q: %q", name, text)
			}
		}
		if back, err := Unescape(text); err != nil || back != name {
			t.Errorf("%q: %q, %v from %q", name, back, err, text)
		}
		meant, err := Unescape(name)
		if again, _ := Unescape(Escape(meant)); err == nil && again != meant || err != nil && err != strconv.ErrSyntax {
			t.Errorf("%q: means %q, then %q, %v", name, meant, again, err)
		}
	})
}
