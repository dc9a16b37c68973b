package main

import (
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/tests/figures"
)

// plots returns the plots of points by the names of their files, nil for those of which too little was measured.
func plots(points []point) map[string]*figures.Plot {
	out := map[string]*figures.Plot{}
	for name, p := range map[string]figures.Plot{
		"read":    {Title: "Hot reads, 1 thread", Unit: "GB/s", Label: sizeText},
		"fresh":   {Title: "Writes of new names, 1 thread", Unit: "GB/s", Label: sizeText},
		"latency": {Title: "One block by tier", Unit: "us", Log: true, Label: sizeText},
		"scale":   {Title: "Cost by number of blocks", Unit: "heap for each, and time until ready after SIGKILL", Log: true, Label: countText},
	} {
		out[name] = figures.PlotOf(points, p, func(at point) (string, int, float64) {
			if at.plot != name || name == "latency" && !slices.Contains([]int{64 * kib, mib, 4 * mib, 16 * mib}, at.x) {
				return "", 0, 0
			}
			return at.line, at.x, at.y
		})
	}
	if p := out["latency"]; p != nil && p.Lines() < 2 {
		out["latency"] = nil
	}
	return out
}

func countText(n int) string {
	switch {
	case n%1e6 == 0:
		return fmt.Sprintf("%d M", n/1e6)
	case n%1e3 == 0:
		return fmt.Sprintf("%d k", n/1e3)
	}
	return fmt.Sprint(n)
}
