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
	if err := figures.WritePlots(dir, plots(rows)); err != nil {
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

// TestTierPlot shows that each measured tier has a line on a scale of powers of ten, also over sizes that it lacks, and that
// one tier makes no plot. TestPlots shows that it is XML.
func TestTierPlot(t *testing.T) {
	var rows []row
	add := func(topic, target string, size int, us float64) {
		rows = append(rows, tails{p50: us, mean: 7, p99: 7, max: 7}.rows(row{Topic: topic, Target: target, BlockBytes: size, Threads: 1}, "us")...)
	}
	add("read", kvfsName, 64*kib, 10)
	add("read", shmName, 64*kib, 1)
	add("read", kvfsName, 2*mib, 1)
	add("read", kvfsName, 16*mib, 1000)
	if p := tierPlot(rows); p != nil {
		t.Errorf("one tier: got %+v", p)
	}
	add("peerlatency", kvfsName, mib, 1)
	add("peerlatency", readName, mib, 100)
	got := tierPlot(rows).SVG()
	for _, want := range []string{">memory<", ">peer<", ">64 KiB<", ">1 MiB<", ">16 MiB<", ">10<", ">100<", ">1000<",
		`d="M50.0 284.0L510.0 34.0"`, `d="M280.0 159.0"`, `cx="280.0" cy="159.0"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	for _, other := range []string{">2 MiB<", ">1<", ">SSD<", ">bucket<"} {
		if strings.Contains(got, other) {
			t.Errorf("%s in\n%s", other, got)
		}
	}
}

func TestScalePlot(t *testing.T) {
	var rows []row
	for _, n := range []int{1000, 1_000_000} {
		rows = append(rows, row{Topic: "heap", Blocks: n, Unit: "heap for each block, bytes", Value: 300},
			row{Topic: "heap", Blocks: n, Unit: "ready again after SIGKILL, s", Value: float64(n) / 1e5}, row{Topic: "heap", Blocks: n, Unit: "stored, blocks/s", Value: 1})
	}
	got := scalePlot(rows).SVG()
	for _, want := range []string{">heap, bytes<", ">ready, ms<", ">1 k<", ">1 M<", ">10<", ">10000<"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
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
