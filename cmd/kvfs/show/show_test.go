package show

import (
	"testing"
)

// TestText shows that what a terminal would obey is escaped, and that other names, of any language,
// are printed as they are, but for backslashes.
func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"g/a b\"c'": "g/a b\"c'", `a\nb`: `a\\nb`, "größe/块": "größe/块", "a\tb\n": `a\tb\n`, "\x1b[31m\xff": `\x1b[31m\xff`, "\u009b\u202e": `\u009b\u202e`,
	} {
		if got := Text(in); got != want || Lines(got) != want {
			t.Errorf("%q: %q, want %q; %q as part of an error", in, got, want, Lines(got))
		}
	}
}

// TestHumanBytes pins the units.
func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 40: "1.0 TiB", 3 << 59: "1536.0 PiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
