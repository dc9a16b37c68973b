package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
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

// plot is a figure by block size, a line for each target.
type plot struct {
	title, unit string
	sizes       []int                // ascending
	lines       map[string][]float64 // by target, one value for each of sizes
	order       []string             // of lines
}

// plotOf collects the rates of a topic with one thread. It returns nil if there are fewer than two sizes.
func plotOf(rows []row, topic, title string) *plot {
	p := &plot{title: title, lines: map[string][]float64{}}
	for _, r := range rows {
		if r.Topic != topic || r.Threads != 1 || r.Unit != "GB/s" {
			continue
		}
		if p.unit = r.Unit; !slices.Contains(p.sizes, r.BlockBytes) {
			p.sizes = append(p.sizes, r.BlockBytes)
		}
		if p.lines[r.Target] == nil {
			p.order = append(p.order, r.Target)
		}
		p.lines[r.Target] = append(p.lines[r.Target], r.Value)
	}
	if len(p.sizes) < 2 || !slices.IsSorted(p.sizes) {
		return nil
	}
	return p
}

// svg draws the plot.
func (p *plot) svg() string {
	top := 0.0
	for _, values := range p.lines {
		top = max(top, slices.Max(values))
	}
	step := math.Pow(10, math.Floor(math.Log10(top/plotTicks)))
	for _, by := range []float64{2, 5, 10} {
		if top/step > plotTicks {
			step = by * math.Pow(10, math.Floor(math.Log10(top/plotTicks)))
		}
	}
	x := func(i int) float64 {
		return plotLeft + float64(i)*(plotWidth-plotLeft-plotRight)/float64(len(p.sizes)-1)
	}
	y := func(v float64) float64 { return plotTop + (plotHeight-plotTop-plotBottom)*(1-v/top) }
	var b strings.Builder
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\" fill=\"#888\">%s</text>\n", x, y, anchor, html.EscapeString(s))
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"%d\" role=\"img\">\n", plotWidth, plotHeight, plotFont)
	fmt.Fprintf(&b, "<title>%s, %s</title>\n", html.EscapeString(p.title), html.EscapeString(p.unit))
	text(plotLeft, 18, "start", p.title+", "+p.unit)
	for v := 0.0; v <= top; v += step {
		fmt.Fprintf(&b, "<path d=\"M%d %.1fH%d\" stroke=\"#8888\"/>\n", plotLeft, y(v), plotWidth-plotRight)
		text(plotLeft-6, y(v)+4, "end", fmt.Sprintf("%.4g", v))
	}
	for i, size := range p.sizes {
		text(x(i), plotHeight-14, "middle", sizeText(size))
	}
	for n, name := range p.order {
		var path strings.Builder
		for i, v := range p.lines[name] {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], x(i), y(v))
		}
		color := plotColors[n%len(plotColors)]
		fmt.Fprintf(&b, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", path.String(), color)
		at := float64(plotTop + 16*n)
		fmt.Fprintf(&b, "<path d=\"M%d %.0fh20\" stroke=\"%s\" stroke-width=\"2\"/>\n", plotWidth-plotRight+10, at, color)
		text(plotWidth-plotRight+36, at+4, "start", (&target{name: name}).title())
	}
	return b.String() + "</svg>\n"
}

// writePlots writes the plots of a report to a directory.
func writePlots(dir string, rows []row) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for topic, title := range map[string]string{"read": "Hot reads, 1 thread", "fresh": "Writes of new names, 1 thread"} {
		p := plotOf(rows, topic, title)
		if p == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, topic+".svg"), []byte(p.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
