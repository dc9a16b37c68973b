package client

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReadNames shows the forms of names in standard input.
func TestReadNames(t *testing.T) {
	for _, tc := range []struct {
		args  string
		stdin string
		nul   bool
		want  []string
		err   string
	}{
		{"a b", "c\n", false, []string{"a", "b"}, ""},
		{"a - b", "c d\n\ne", false, []string{"a", "c d", "e", "b"}, ""},
		{"-", "a\nb\x00c\x00\x00d", true, []string{"a\nb", "c", "d"}, ""},
		{"-", "\xff\n", false, []string{"\xff"}, ""},
		{"-", "", false, nil, "standard input has no names: nothing to do"},
		{"-", "\x00\x00", true, nil, "standard input has no names: nothing to do"},
		{"-", "a\n" + strings.Repeat("x", 10_000), false, nil,
			"standard input: the name after 1 others is too long: names are one a line, or with -0 end with a NUL byte"},
	} {
		got, err := ReadNames(strings.Fields(tc.args), strings.NewReader(tc.stdin), tc.nul)
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.err == "") || err != nil && fmt.Sprint(err) != tc.err {
			t.Errorf("%q with %.20q: got %q, %v; want %q, %q", tc.args, tc.stdin, got, err, tc.want, tc.err)
		}
	}
}

// TestCutBatch shows that a list is cut by the number of names and by their bytes as
// JSON, and that a name alone always passes.
func TestCutBatch(t *testing.T) {
	names := func(n, size int) []string { return slices.Repeat([]string{strings.Repeat("x", size)}, n) }
	for _, tc := range []struct {
		names []string
		want  int
	}{
		{nil, 0}, {names(3, 1), 3}, {names(RequestNames+2, 1), RequestNames},
		{names(10, 1<<20), 7}, {names(2, requestBytes*2), 1}, {[]string{strings.Repeat("\x01", 2<<20), "a"}, 1},
	} {
		batch, rest := CutBatch(tc.names)
		if len(batch) != tc.want || len(batch)+len(rest) != len(tc.names) {
			t.Errorf("%d names: a batch of %d, want %d; %d are left", len(tc.names), len(batch), tc.want, len(rest))
		}
	}
}

// TestReadDocument shows which files can become part of a request.
func TestReadDocument(t *testing.T) {
	for _, tc := range []struct{ text, want, err string }{
		{" {\"a\": 1}\n", `{"a": 1}`, ""},
		{"", "", "byte 0: unexpected end of JSON input"},
		{"{\"a\": 1,}", "", "byte 9: invalid character '}' looking for beginning of object key string"},
		{"{} {}", "", "byte 4: invalid character '{' after top-level value"},
		{"[]", "", "not a JSON object"},
		{"null", "", "not a JSON object"},
		{strings.Repeat(" ", maxDocument), "", "more than 8388608 bytes"},
	} {
		file := filepath.Join(t.TempDir(), "doc.json")
		must(t, os.WriteFile(file, []byte(tc.text), 0o600))
		for name, shown := range map[string]string{file: file, "-": "standard input"} {
			got, err := ReadDocument(name, strings.NewReader(tc.text))
			if string(got) != tc.want || tc.err == "" && err != nil || tc.err != "" && fmt.Sprint(err) != shown+": "+tc.err {
				t.Errorf("%.20q in %s: got %s, %v; want %s, %s", tc.text, name, got, err, tc.want, tc.err)
			}
		}
	}
}
