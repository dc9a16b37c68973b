package main

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlots shows that the plots are drawn of the rows with one thread, that they are XML, and that a topic with one size
// has none.
func TestPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plots")
	var rows []row
	for i, size := range []int{64 * kib, mib, 4 * mib} {
		for _, target := range []string{shmName, hugeName, kvfsName} {
			rows = append(rows, row{Topic: "read", Target: target, BlockBytes: size, Threads: 1, Unit: "GB/s", Value: float64(1 + i)},
				row{Topic: "read", Target: target, BlockBytes: size, Threads: 2, Unit: "GB/s", Value: 100})
		}
	}
	rows = append(rows, row{Topic: "fresh", Target: kvfsName, BlockBytes: mib, Threads: 1, Unit: "GB/s", Value: 1})
	if err := writePlots(dir, rows); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "read.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(text, new(struct{})); err != nil {
		t.Error(err)
	}
	for _, want := range []string{">kvfs<", ">huge tmpfs<", ">64 KiB<", ">4 MiB<", `d="M50.0 200.7L280.0 117.3L510.0 34.0"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "100") {
		t.Error("it has values of two threads")
	}
	if _, err := os.Stat(filepath.Join(dir, "fresh.svg")); !os.IsNotExist(err) {
		t.Errorf("a plot of one size: %v", err)
	}
}
