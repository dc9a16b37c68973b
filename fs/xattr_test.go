package fs

import (
	"strings"
	"testing"
	"time"
)

// TestParseTTL pins what a time to live may look like.
func TestParseTTL(t *testing.T) {
	for _, c := range []struct {
		in   string
		want time.Duration
		ok   bool
	}{
		{"0", 0, true},
		{"0s", 0, true},
		{"1", time.Second, true},
		{"90", 90 * time.Second, true},
		{"90s", 90 * time.Second, true},
		{"1h30m", 90 * time.Minute, true},
		{"100ms", 100 * time.Millisecond, true},
		{"1.5h", 90 * time.Minute, true},
		{"4294967295", 4294967295 * time.Second, true}, // the most whole seconds
		{"4294967296", 0, false},
		{"18446744073709551616", 0, false},
		{"292y", 0, false},
		{"2562048h", 0, false}, // beyond time.Duration
		{"-1", 0, false},
		{"-1s", 0, false},
		{"1 s", 0, false},
		{"1d", 0, false},
		{"0x10", 0, false},
		{"1_000", 0, false},
		{"soon", 0, false},
		{"", 0, false},
	} {
		got, ok := parseTTL(c.in)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%q: got %v, %v, want %v, %v", c.in, got, ok, c.want, c.ok)
		}
	}
}

// FuzzParseTTL shows that what is accepted is never negative, and reads back from
// the form in which the attribute shows it.
func FuzzParseTTL(f *testing.F) {
	for _, s := range []string{"", "0", "1", "90s", "1h30m", "-1s", "1e3", "9223372036s", "4294967295", "1ns", "µs", "1.0000000001s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := parseTTL(s)
		if !ok {
			return
		}
		if d < 0 {
			t.Errorf("%q: %v is negative", s, d)
		}
		if strings.ContainsAny(s, " \x00/") {
			t.Errorf("%q is accepted", s)
		}
		if again, ok := parseTTL(d.String()); !ok || again != d {
			t.Errorf("%q: %v reads back as %v, %v", s, d, again, ok)
		}
	})
}
