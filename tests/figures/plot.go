// Package figures draws plots of measurements, and puts tables of them into pages of the documentation.
package figures

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

// Plot is lines of values by number: a block size, a number of blocks or of nodes.
type Plot struct {
	Title, Unit string
	Log         bool // scale of the values
	Label       func(column int) string

	columns []int // ascending, two at least
	order   []string
	lines   map[string]map[int]float64 // by line and column; a line need not have each column
}

// PlotOf collects values from rows. point returns the line, the column and the value of a row; an empty line: none. It
// returns nil if there are fewer than two columns.
func PlotOf[R any](rows []R, p Plot, point func(r R) (line string, column int, value float64)) *Plot {
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

// Lines returns how many lines the plot has.
func (p *Plot) Lines() int { return len(p.order) }

// scale returns the lowest and the highest value of the y axis, and the values with a line across.
func (p *Plot) scale() (bottom, top float64, ticks []float64) {
	bottom = math.Inf(1)
	for _, line := range p.lines {
		for _, v := range line {
			bottom, top = min(bottom, v), max(top, v)
		}
	}
	if p.Log {
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

// SVG draws the plot.
func (p *Plot) SVG() string {
	bottom, top, ticks := p.scale()
	x := func(i int) float64 {
		return plotLeft + float64(i)*(plotWidth-plotLeft-plotRight)/float64(len(p.columns)-1)
	}
	y := func(v float64) float64 {
		share := v / top
		if p.Log {
			share = math.Log(v/bottom) / math.Log(top/bottom)
		}
		return plotTop + (plotHeight-plotTop-plotBottom)*(1-share)
	}
	var b strings.Builder
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\" fill=\"#888\">%s</text>\n", x, y, anchor, html.EscapeString(s))
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"%d\" role=\"img\">\n", plotWidth, plotHeight, plotFont)
	fmt.Fprintf(&b, "<title>%s, %s</title>\n", html.EscapeString(p.Title), html.EscapeString(p.Unit))
	text(plotLeft, 18, "start", p.Title+", "+p.Unit)
	for _, v := range ticks {
		fmt.Fprintf(&b, "<path d=\"M%d %.1fH%d\" stroke=\"#8888\"/>\n", plotLeft, y(v), plotWidth-plotRight)
		text(plotLeft-6, y(v)+4, "end", strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64))
	}
	for i, column := range p.columns {
		text(x(i), plotHeight-14, "middle", p.Label(column))
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

// WritePlots writes plots to a directory, by name without .svg. Those that are nil it leaves out.
func WritePlots(dir string, plots map[string]*Plot) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, p := range plots {
		if p == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(p.SVG()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
