package block

import (
	"strings"
	"testing"
)

// TestClip shows that texts are cut between characters, and bytes that are none where the limit is.
func TestClip(t *testing.T) {
	for _, c := range []struct {
		text        string
		limit       int
		clip, short string
	}{
		{"", 3, "", ""},
		{"abcd", 4, "abcd", "abcd"},
		{"abcde", 4, "abcd", "a..."},
		{"abéde", 5, "abéd", "ab..."},
		{"ab漢de", 4, "ab", "a..."},
		{"a漢字", 6, "a漢", "a..."},
		{"a漢字", 7, "a漢字", "a漢字"},
		{"漢字", 5, "漢", "..."},
		{"漢", 3, "漢", "漢"},
		{"a\x80\x80\x80\x80\x80\x80", 6, "a\x80\x80\x80\x80\x80", "..."},
		{strings.Repeat("\x80", 9), 8, strings.Repeat("\x80", 8), strings.Repeat("\x80", 5) + "..."},
	} {
		if got := Clip(c.text, c.limit); got != c.clip {
			t.Errorf("%q to %d: got %q, want %q", c.text, c.limit, got, c.clip)
		}
		if got := Shorten(c.text, c.limit); got != c.short {
			t.Errorf("%q to %d: got %q, want %q", c.text, c.limit, got, c.short)
		}
		if got := Clip([]byte(c.text), c.limit); string(got) != c.clip {
			t.Errorf("%q to %d: got %q, want %q", c.text, c.limit, got, c.clip)
		}
	}
}
