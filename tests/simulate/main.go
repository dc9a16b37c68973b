// Simulate reads the output of the tests that simulate clusters, and prints their figures as the tables of docs/cluster.md. With
// -docs it puts them into that page, between the lines <!-- sim: TABLE --> and <!-- end -->, and draws plots beside it.
//
//	KVFS_SIM=1000 go test -v -run TestConvergence ./cluster/gossip | go run ./tests/simulate
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cluster/simnet"
	"github.com/kvfs/kvfs/tests/figures"
)

var tables = []string{"all", "trouble", "owned"}

func main() {
	docs := flag.String("docs", "", "the directory of cluster.md, whose tables and plots are replaced")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *docs); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, docs string) error {
	page := figures.Page{File: filepath.Join(docs, "cluster.md"), Topics: tables}
	if docs != "" {
		if err := page.Check(tables); err != nil {
			return err
		}
	}
	all, err := read(in, out)
	if err != nil {
		return err
	}
	with := map[string]string{}
	for _, table := range tables {
		text := markdown(all, table)
		if text == "" {
			return fmt.Errorf("no figures of table %s", table)
		}
		fmt.Fprint(out, "\n", text)
		with[table] = "\n" + text + "\n"
	}
	if docs == "" {
		return nil
	}
	return errors.Join(page.Fill(with), figures.WritePlots(docs, plots(all)))
}

// read returns the figures of a log, and copies its other lines.
func read(in io.Reader, out io.Writer) (all []simnet.Figure, err error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if f, ok := simnet.ParseFigure(lines.Text()); ok {
			all = append(all, f)
			continue
		}
		fmt.Fprintln(out, lines.Text())
		if strings.HasPrefix(lines.Text(), "FAIL") {
			err = errors.New("a test failed")
		}
	}
	return all, errors.Join(err, lines.Err())
}

// markdown returns a table, with rows in the order of the figures, or an empty text. A cell of several figures has the least and
// the most.
func markdown(all []simnet.Figure, table string) (text string) {
	var rows, columns []string
	cells := map[string][]simnet.Figure{}
	for _, f := range all {
		if f.Table == table {
			rows, columns = append(rows, f.Row), append(columns, f.Column)
			cells[f.Row+f.Column] = append(cells[f.Row+f.Column], f)
		}
	}
	if rows == nil {
		return ""
	}
	slices.SortFunc(columns, func(a, b string) int { return cmp.Or(cmp.Compare(number(a), number(b)), strings.Compare(a, b)) })
	columns = slices.Compact(columns)
	line := func(first string, cell func(column string) string) {
		text += "| " + first
		for _, column := range columns {
			text += " | " + cell(column)
		}
		text += " |\n"
	}
	if number(columns[0]) > 0 {
		line("nodes", func(column string) string { return count(number(column)) })
	} else {
		line("", func(column string) string { return column })
	}
	line("---", func(string) string { return "---" })
	for i, row := range rows {
		if !slices.Contains(rows[:i], row) {
			line(row, func(column string) string { return span(cells[row+column]) })
		}
	}
	return text
}

// span writes figures of one unit.
func span(all []simnet.Figure) string {
	if len(all) == 0 {
		return ""
	}
	by := func(a, b simnet.Figure) int { return cmp.Compare(a.Value, b.Value) }
	least, most := value(slices.MinFunc(all, by)), value(slices.MaxFunc(all, by))
	if least == most {
		return most
	}
	return strings.TrimSuffix(least, " s") + " to " + most
}

// value writes a figure, short.
func value(f simnet.Figure) string {
	v, digits := f.Value, 0
	switch {
	case f.Unit == "":
		return count(int(v))
	case f.Unit != "s" && v >= 1e9:
		v, f.Unit = v/1e9, "G"+f.Unit
	case f.Unit != "s":
		v, f.Unit = v/1e6, "M"+f.Unit
	}
	if v < 10 {
		digits = 1
	}
	if v < 1 && f.Unit != "s" {
		digits = 2
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + f.Unit
}

// number returns the number of nodes that a column is of; 0: of no number.
func number(column string) int {
	n, _ := strconv.Atoi(column)
	return n
}

// count writes a number with commas.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plots returns the plots by the names of their files.
func plots(all []simnet.Figure) map[string]*figures.Plot {
	cost := figures.Plot{Title: "Cost by number of nodes", Unit: "index of each node, and what each node receives", Log: true, Label: count}
	known := figures.Plot{Title: "Time until all nodes know of a node that joined, left or was killed", Unit: "s", Label: count}
	return map[string]*figures.Plot{
		"simulation": figures.PlotOf(all, cost, func(f simnet.Figure) (string, int, float64) {
			switch {
			case strings.HasPrefix(f.Row, "index"):
				return "MB, " + f.Table, number(f.Column), f.Value / 1e6
			case f.Unit == "B/s":
				return "MB/s, " + f.Table, number(f.Column), f.Value / 1e6
			}
			return "", 0, 0
		}),
		"convergence": figures.PlotOf(all, known, func(f simnet.Figure) (string, int, float64) {
			for _, word := range []string{"joined", "left", "killed"} {
				if f.Table == "all" && strings.Contains(f.Row, word) {
					return word, number(f.Column), f.Value
				}
			}
			return "", 0, 0
		}),
	}
}
