package main

import (
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/tests/figures"
)

// ratePlot has the rates of a topic by block size, with one thread.
func ratePlot(rows []row, topic, title string) *figures.Plot {
	return figures.PlotOf(rows, figures.Plot{Title: title, Unit: "GB/s", Label: sizeText}, func(r row) (string, int, float64) {
		if r.Topic != topic || r.Threads != 1 || r.Unit != "GB/s" {
			return "", 0, 0
		}
		return (&target{name: r.Target}).title(), r.BlockBytes, r.Value
	})
}

// tierPlot has the time of one block from each tier of which a topic was measured.
func tierPlot(rows []row) *figures.Plot {
	tiers := map[[2]string]string{
		{"read", kvfsName}: "memory", {"cold", kvfsName}: "SSD", {"peerlatency", readName}: "peer", {"object", kvfsName}: "bucket",
	}
	p := figures.PlotOf(rows, figures.Plot{Title: "One block by tier", Unit: "us", Log: true, Label: sizeText}, func(r row) (string, int, float64) {
		if r.Unit != "us, p50" || !slices.Contains([]int{64 * kib, mib, 4 * mib, 16 * mib}, r.BlockBytes) {
			return "", 0, 0
		}
		return tiers[[2]string{r.Topic, r.Target}], r.BlockBytes, r.Value
	})
	if p == nil || p.Lines() < 2 {
		return nil
	}
	return p
}

// scalePlot has what more and more blocks cost.
func scalePlot(rows []row) *figures.Plot {
	p := figures.Plot{Title: "Cost by number of blocks", Unit: "heap for each, and time until ready after SIGKILL", Log: true, Label: countText}
	return figures.PlotOf(rows, p, func(r row) (string, int, float64) {
		switch {
		case r.Topic != "heap":
			return "", 0, 0
		case r.Unit == heapUnit+", bytes":
			return "heap, bytes", r.Blocks, r.Value
		case r.Unit == readyUnit+", s":
			return "ready, ms", r.Blocks, 1e3 * r.Value
		}
		return "", 0, 0
	})
}

// countText writes a number of blocks.
func countText(n int) string {
	switch {
	case n%1e6 == 0:
		return fmt.Sprintf("%d M", n/1e6)
	case n%1e3 == 0:
		return fmt.Sprintf("%d k", n/1e3)
	}
	return fmt.Sprint(n)
}

// plots returns the plots of a report by the names of their files, nil for those of which too little was measured.
func plots(rows []row) map[string]*figures.Plot {
	return map[string]*figures.Plot{
		"read": ratePlot(rows, "read", "Hot reads, 1 thread"), "fresh": ratePlot(rows, "fresh", "Writes of new names, 1 thread"),
		"latency": tierPlot(rows), "scale": scalePlot(rows),
	}
}
