package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/figures"
)

// TestPlots shows that the plots are drawn of the points, that they are XML, and that one size makes no plot.
func TestPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plots")
	var points []point
	for i, size := range []int{64 * kib, mib, 4 * mib} {
		for _, line := range []string{"tmpfs", "huge tmpfs", "kvfs"} {
			points = append(points, point{"read", line, size, float64(1 + i)})
		}
	}
	points = append(points, point{"fresh", "kvfs", mib, 1})
	if err := figures.WritePlots(dir, plots(points)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "read.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(text, new(struct{})); err != nil {
		t.Error(err)
	}
	mustContain(t, string(text), ">kvfs<", ">huge tmpfs<", ">64 KiB<", ">4 MiB<", `d="M50.0 200.7L280.0 117.3L510.0 34.0"`)
	if _, err := os.Stat(filepath.Join(dir, "fresh.svg")); !os.IsNotExist(err) {
		t.Errorf("a plot of one size: %v", err)
	}
}

// TestLogPlots shows that each measured tier has a line on a scale of powers of ten, also over sizes that it lacks, that
// one tier makes no plot, and that numbers of blocks have short names.
func TestLogPlots(t *testing.T) {
	points := []point{{"latency", "memory", 64 * kib, 10}, {"latency", "memory", 2 * mib, 1}, {"latency", "memory", 16 * mib, 1000}}
	if p := plots(points)["latency"]; p != nil {
		t.Errorf("one tier: got %+v", p)
	}
	got := plots(append(points, point{"latency", "peer", mib, 100}))["latency"].SVG()
	mustContain(t, got, ">memory<", ">peer<", ">64 KiB<", ">1 MiB<", ">16 MiB<", ">10<", ">100<", ">1000<",
		`d="M50.0 284.0L510.0 34.0"`, `d="M280.0 159.0"`, `cx="280.0" cy="159.0"`)
	for _, other := range []string{">2 MiB<", ">1<", ">SSD<"} {
		if strings.Contains(got, other) {
			t.Errorf("%s in\n%s", other, got)
		}
	}
	got = plots([]point{{"scale", "heap, bytes", 1000, 300}, {"scale", "heap, bytes", 1_000_000, 300}, {"scale", "ready, ms", 1000, 10}})["scale"].SVG()
	mustContain(t, got, ">heap, bytes<", ">ready, ms<", ">1 k<", ">1 M<")
}

// TestHeapSteps shows that steps without memory are left out, and told.
func TestHeapSteps(t *testing.T) {
	for _, c := range []struct {
		most, available int
		want            string
	}{
		{10_000_000, 100 * gib, "[1000 10000 100000 1000000 10000000]"},
		{10_000_000, 20 * gib, "[1000 10000 100000 1000000]; not 10000000, which need 67.8 GiB of memory: 20.0 are available"},
		{5000, 20 * gib, "[1000 5000]"},
		{1000, 20 * gib, "[1000]"},
		{10, 0, "[10]"},
	} {
		steps, note := heapSteps(c.most, c.available)
		if got := fmt.Sprint(steps) + note; got != c.want {
			t.Errorf("%d: got %s, want %s", c.most, got, c.want)
		}
	}
}
