package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newPage writes a page into a new directory.
func newPage(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// A run replaces the blocks of what it measured. Prose, other blocks, and blocks of what was skipped stay byte for byte. A
// second run gives the same page.
func TestPage(t *testing.T) {
	const before = "# Title\n\nProse, <!-- end --> in a line.\r\n<!-- bench: read -->\nold\n<!-- end -->\nmore\t \n\n" +
		"<!-- bench: cold -->\n<!-- end -->\n<!-- bench: fresh -->\nfigures\n<!-- end -->\n<!-- bench: heap -->\nothers\n<!-- end -->\nlast"
	file := newPage(t, before)
	r := newReport()
	r.table("read", "Reads", "", "block", "goal").row("1", "2, met")
	r.table("read", "Times", "(n)", "block").row("3")
	r.table("read", "None", "", "block")
	r.table("cold", "Cold", "", "block").row("4")
	r.table("fresh", "Half", "", "block").row("5")
	r.skip("fresh", "no reason")
	want := strings.Replace(before, "old\n", "\nM.\n\n**Reads**\n\n| block |   goal |\n| ----- | -----: |\n| 1     | 2, met |\n\n"+
		"**Times** (n)\n\n| block |\n| ----- |\n| 3     |\n\n", 1)
	want = strings.Replace(want, "<!-- bench: cold -->\n", "<!-- bench: cold -->\n\nM.\n\n**Cold**\n\n| block |\n| ----- |\n| 4     |\n\n", 1)
	for range 2 {
		if err := writePage(file, "M.", r); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != want {
			t.Errorf("%v, got\n%s\nwant\n%s", err, got, want)
		}
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The page of the tree has a block for each topic.
func TestPerformancePage(t *testing.T) {
	if err := performance("../../docs/benchmarks.md").Check(topics()); err != nil {
		t.Error(err)
	}
}
