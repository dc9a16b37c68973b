package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTree shows that all pages of the tree are in the navigation, and that all their links lead somewhere.
func TestTree(t *testing.T) {
	dir := t.TempDir()
	if err := write("../..", dir); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<h1 id=\"kvfs\">", "href=\"docs/tour.html\"", "src=\"docs/tiers.svg\"", "<td>"} {
		if !strings.Contains(string(index), want) {
			t.Errorf("index.html lacks %s", want)
		}
	}
	old, err := os.ReadFile(filepath.Join(dir, "docs", "alerts.html"))
	if err != nil || !strings.Contains(string(old), `href="../docs/operations.html#alerts"`) || !strings.Contains(string(old), `"kvfsdown"`) {
		t.Errorf("the old address of the alerts: %v, %s", err, old)
	}
	if _, err := os.Stat(filepath.Join(dir, "docs", "tiers.svg")); err != nil {
		t.Error(err)
	}
}

// TestFaults plants a page that is not in the navigation, and links that lead nowhere, in a copy of the pages.
func TestFaults(t *testing.T) {
	for _, tt := range []struct{ file, text, want string }{
		{"docs/new.md", "# New", "docs/new.md is not in the table"},
		{"docs/tour.md", "[x](nowhere.md)", "docs/tour.md: link to nowhere.md: no such file"},
		{"docs/tour.md", "[x](../README.md#nowhere)", "docs/tour.md: link to ../README.md#nowhere: no such heading"},
		{"docs/tour.md", "[x](#nowhere)", "docs/tour.md: link to #nowhere: no such heading"},
		{"docs/tour.md", "[x](engines)", "docs/tour.md: link to engines: no such file"},
		{"docs/tour.md", "![x](x.png)", "docs/tour.md: link to x.png: no such file"},
		{"docs/page.md", "# Moved", ""},
		{"docs/tour.md", "[x](page.md)", "docs/tour.md: link to page.md: no such file"},
		{"docs/operations.md", "# Operations", "docs/page.md moved to docs/operations.md: no such heading: who-may-see-it"},
		{"docs/tour.md", "# A `b` -c\n# A `b` -c\n[x](#a-b--c) [y](#a-b--c-1) [z](https://example.com) `[not](code)`", ""},
	} {
		root := t.TempDir()
		for _, part := range nav() {
			for _, file := range part.Pages {
				if err := create(filepath.Join(root, file), []byte("# Page")); err != nil {
					t.Fatal(err)
				}
			}
		}
		for page, text := range headings() {
			if err := create(filepath.Join(root, page), []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := create(filepath.Join(root, tt.file), []byte(tt.text)); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := write(root, t.TempDir()); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s with %s: got %q, want %q", tt.file, tt.text, got, tt.want)
		}
	}
}

// headings returns pages with the headings to which moved pages lead.
func headings() map[string]string {
	text := map[string]string{}
	for _, m := range moved() {
		page, heading, _ := strings.Cut(m.to, "#")
		for _, h := range append([]string{heading}, m.headings...) {
			text[page] += "# " + h + "\n"
		}
	}
	return text
}
