package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cluster/simnet"
	"github.com/kvfs/kvfs/tests/figures"
)

// TestRun shows that the figures of a log become tables, on a page too, and plots; that other lines are shown; and that the page
// stays as it is if a test failed or did not run.
func TestRun(t *testing.T) {
	const begin = "<!-- sim: all -->\n<!-- end -->\n<!-- sim: trouble -->\nold\n<!-- end -->\ntext\n"
	dir := t.TempDir()
	file := filepath.Join(dir, "cluster.md")
	if err := os.WriteFile(file, []byte(begin+"<!-- sim: owned -->\n<!-- end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := "=== RUN\n"
	for _, f := range []simnet.Figure{
		{Table: "all", Row: "all know a node that joined", Column: "1000", Value: 12.6, Unit: "s"},
		{Table: "all", Row: "index of each node", Column: "1000", Value: 2.88e9, Unit: "B"},
		{Table: "all", Row: "index of each node", Column: "10", Value: 28.4e6, Unit: "B"},
		{Table: "trouble", Row: "right", Column: "20 nodes, owned", Value: 0.31, Unit: "s"},
		{Table: "trouble", Row: "right", Column: "20 nodes, owned", Value: 7.26, Unit: "s"},
		{Table: "trouble", Row: "look-ups", Column: "20 nodes, owned", Value: 1686624},
		{Table: "trouble", Row: "wrong", Column: "20 nodes, owned"},
		{Table: "owned", Row: "index of each node", Column: "10", Value: 8.7e6, Unit: "B"},
	} {
		log += fmt.Sprintf("    sim_test.go:76: %v\n", f)
	}
	end := strings.ReplaceAll(begin, "old\n", "\n|  | 20 nodes, owned |\n| --- | --- |\n| right | 0.3 to 7.3 s |\n| look-ups | 1,686,624 |\n| wrong | 0 |\n\n") +
		"<!-- sim: owned -->\n\n| nodes | 10 |\n| --- | --- |\n| index of each node | 8.7 MB |\n\n<!-- end -->\n"
	end = strings.Replace(end, "-->\n", "-->\n\n| nodes | 10 | 1,000 |\n| --- | --- | --- |\n| all know a node that joined |  | 13 s |\n"+
		"| index of each node | 28 MB | 2.9 GB |\n\n", 1)
	for log, fails := range map[string]bool{log + "FAIL\tcluster\n": true, "ok\n": true, log: false} {
		var out strings.Builder
		before, err := os.ReadFile(file)
		if err := run(strings.NewReader(log), &out, dir); (err != nil) != fails {
			t.Errorf("%s: got error %v", log, err)
		}
		after, errAfter := os.ReadFile(file)
		if err != nil || errAfter != nil || fails && string(after) != string(before) || !fails && string(after) != end {
			t.Errorf("%v, %v, got\n%s\nwant\n%s", err, errAfter, after, end)
		}
		if !fails && (!strings.HasPrefix(out.String(), "=== RUN\n\n| nodes | 10 |") || strings.Contains(out.String(), "sim_test")) {
			t.Errorf("printed:\n%s", out.String())
		}
	}
	plot, err := os.ReadFile(filepath.Join(dir, "simulation.svg"))
	if err != nil || xml.Unmarshal(plot, new(struct{})) != nil {
		t.Errorf("%v: %s", err, plot)
	}
	for _, want := range []string{">MB, all<", ">MB, owned<", ">1,000<", ">10000<"} {
		if !strings.Contains(string(plot), want) {
			t.Errorf("no %s in\n%s", want, plot)
		}
	}
	if err := run(strings.NewReader(log), io.Discard, ""); err != nil {
		t.Errorf("without a page: %v", err)
	}
}

// The page of the tree has a block for each table.
func TestClusterPage(t *testing.T) {
	if err := (figures.Page{File: "../../docs/cluster.md", Topics: tables}).Check(tables); err != nil {
		t.Error(err)
	}
}
