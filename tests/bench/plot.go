package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The size of a plot, in pixels, and its margins.
const (
	plotWidth, plotHeight = 640, 320
	plotLeft, plotRight   = 50, 130
	plotTop, plotBottom   = 34, 36
	plotFont              = 12
	plotTicks             = 5 // about so many lines across
)

// plotColors are of the lines, in their order. They suit a light and a dark page.
var plotColors = [...]string{"#c0392b", "#2471a3", "#229954", "#7d3c98", "#b9770e"}

// plot is a figure by block size or by number of blocks.
type plot struct {
	title, unit string
	log         bool // scale
	label       func(column int) string
	columns     []int // ascending, two at least
	order       []string
	lines       map[string]map[int]float64 // by line and column; a line need not have each column
}

// plotOf collects values from rows. point returns the line, the column and the value of a row; an empty line: none. It
// returns nil if there are fewer than two columns.
func plotOf(rows []row, p plot, point func(r row) (line string, column int, value float64)) *plot {
	p.lines = map[string]map[int]float64{}
	for _, r := range rows {
		line, column, value := point(r)
		if line == "" || value <= 0 {
			continue
		}
		if p.lines[line] == nil {
			p.order, p.lines[line] = append(p.order, line), map[int]float64{}
		}
		p.columns, p.lines[line][column] = append(p.columns, column), value
	}
	slices.Sort(p.columns)
	if p.columns = slices.Compact(p.columns); len(p.columns) < 2 {
		return nil
	}
	return &p
}

// ratePlot has the rates of a topic by block size, with one thread.
func ratePlot(rows []row, topic, title string) *plot {
	return plotOf(rows, plot{title: title, unit: "GB/s", label: sizeText}, func(r row) (string, int, float64) {
		if r.Topic != topic || r.Threads != 1 || r.Unit != "GB/s" {
			return "", 0, 0
		}
		return (&target{name: r.Target}).title(), r.BlockBytes, r.Value
	})
}

// tierPlot has the time of one block from each tier of which a topic was measured.
func tierPlot(rows []row) *plot {
	tiers := map[[2]string]string{
		{"read", kvfsName}: "memory", {"cold", kvfsName}: "SSD", {"peerlatency", readName}: "peer", {"object", kvfsName}: "bucket",
	}
	p := plotOf(rows, plot{title: "One block by tier", unit: "us", log: true, label: sizeText}, func(r row) (string, int, float64) {
		if r.Unit != "us, p50" || !slices.Contains([]int{64 * kib, mib, 4 * mib, 16 * mib}, r.BlockBytes) {
			return "", 0, 0
		}
		return tiers[[2]string{r.Topic, r.Target}], r.BlockBytes, r.Value
	})
	if p == nil || len(p.order) < 2 {
		return nil
	}
	return p
}

// scalePlot has what more and more blocks cost.
func scalePlot(rows []row) *plot {
	p := plot{title: "Cost by number of blocks", unit: "heap for each, and time until ready after SIGKILL", log: true, label: countText}
	return plotOf(rows, p, func(r row) (string, int, float64) {
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

// scale returns the lowest and the highest value of the y axis, and the values with a line across.
func (p *plot) scale() (bottom, top float64, ticks []float64) {
	bottom = math.Inf(1)
	for _, line := range p.lines {
		for _, v := range line {
			bottom, top = min(bottom, v), max(top, v)
		}
	}
	if p.log {
		bottom, top = math.Pow(10, math.Floor(math.Log10(bottom))), math.Pow(10, math.Ceil(math.Log10(top)))
		for v := bottom; v < 1.5*top; v *= 10 { // the powers are not exact
			ticks = append(ticks, v)
		}
		return bottom, top, ticks
	}
	step := math.Pow(10, math.Floor(math.Log10(top/plotTicks)))
	for _, by := range []float64{2, 5, 10} {
		if top/step > plotTicks {
			step = by * math.Pow(10, math.Floor(math.Log10(top/plotTicks)))
		}
	}
	for v := 0.0; v <= top; v += step {
		ticks = append(ticks, v)
	}
	return 0, top, ticks
}

// svg draws the plot.
func (p *plot) svg() string {
	bottom, top, ticks := p.scale()
	x := func(i int) float64 {
		return plotLeft + float64(i)*(plotWidth-plotLeft-plotRight)/float64(len(p.columns)-1)
	}
	y := func(v float64) float64 {
		share := v / top
		if p.log {
			share = math.Log(v/bottom) / math.Log(top/bottom)
		}
		return plotTop + (plotHeight-plotTop-plotBottom)*(1-share)
	}
	var b strings.Builder
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\" fill=\"#888\">%s</text>\n", x, y, anchor, html.EscapeString(s))
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"%d\" role=\"img\">\n", plotWidth, plotHeight, plotFont)
	fmt.Fprintf(&b, "<title>%s, %s</title>\n", html.EscapeString(p.title), html.EscapeString(p.unit))
	text(plotLeft, 18, "start", p.title+", "+p.unit)
	for _, v := range ticks {
		fmt.Fprintf(&b, "<path d=\"M%d %.1fH%d\" stroke=\"#8888\"/>\n", plotLeft, y(v), plotWidth-plotRight)
		text(plotLeft-6, y(v)+4, "end", strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64))
	}
	for i, column := range p.columns {
		text(x(i), plotHeight-14, "middle", p.label(column))
	}
	for n, name := range p.order {
		color := plotColors[n%len(plotColors)]
		var path strings.Builder
		for i, column := range p.columns {
			if v, ok := p.lines[name][column]; ok {
				fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(path.Len(), 1)], x(i), y(v))
				fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x(i), y(v), color)
			}
		}
		fmt.Fprintf(&b, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", path.String(), color)
		at := float64(plotTop + 16*n)
		fmt.Fprintf(&b, "<path d=\"M%d %.0fh20\" stroke=\"%s\" stroke-width=\"2\"/>\n", plotWidth-plotRight+10, at, color)
		text(plotWidth-plotRight+36, at+4, "start", name)
	}
	return b.String() + "</svg>\n"
}

// writePlots writes the plots of a report to a directory, but those of which too little was measured.
func writePlots(dir string, rows []row) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, p := range map[string]*plot{
		"read": ratePlot(rows, "read", "Hot reads, 1 thread"), "fresh": ratePlot(rows, "fresh", "Writes of new names, 1 thread"),
		"latency": tierPlot(rows), "scale": scalePlot(rows),
	} {
		if p == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(p.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
