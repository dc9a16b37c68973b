package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// report collects tables for people and the same figures for programs.
type report struct {
	machine []string
	quick   bool                // no verdicts: the figures are no measurement
	tables  map[string][]*table // by topic
	skipped map[string]bool
	rows    []row
}

// row is one figure, as in the file of -json.
type row struct {
	Topic      string             `json:"topic"`
	Target     string             `json:"target"`
	BlockBytes int                `json:"block_bytes,omitempty"`
	Blocks     int                `json:"blocks,omitempty"`
	Threads    int                `json:"threads,omitempty"`
	Value      float64            `json:"value"`
	Unit       string             `json:"unit"`
	Ratio      float64            `json:"ratio_to_best,omitempty"` // reference
	RatioTo    map[string]float64 `json:"ratio_to,omitempty"`      // others, by name
	Goal       *float64           `json:"goal,omitempty"`
	Met        *bool              `json:"met,omitempty"`
	Samples    []float64          `json:"samples,omitempty"`
	FuseOps    map[string]float64 `json:"fuse_ops,omitempty"`
}

func newReport(quick bool) *report {
	return &report{quick: quick, tables: map[string][]*table{}, skipped: map[string]bool{}}
}

// table returns the table of a topic with that title. The first call makes it, with head and note.
func (r *report) table(topic, title, note string, head ...string) *table {
	for _, t := range r.tables[topic] {
		if t.title == title {
			return t
		}
	}
	t := &table{title: title, note: note, head: head}
	r.tables[topic] = append(r.tables[topic], t)
	return t
}

// skip says why a topic was not measured, instead of its table.
func (r *report) skip(topic, why string) {
	r.tables[topic], r.skipped[topic] = nil, true
	r.table(topic, "Not measured: "+topic, "", "why").add("skipped: " + why)
}

func (r *report) add(rows ...row) { r.rows = append(r.rows, rows...) }

// judge adds a goal to the row and returns the word for the table.
func (r *report) judge(row *row, goal float64, met bool) string {
	row.Goal = &goal
	if r.quick {
		return "quick"
	}
	row.Met = &met
	if met {
		return "met"
	}
	return "missed"
}

func (r *report) print(w io.Writer) {
	for _, line := range r.machine {
		fmt.Fprintln(w, line)
	}
	for _, topic := range topics() {
		r.printTables(w, topic)
	}
}

// printTables prints those that have rows, each after an empty line.
func (r *report) printTables(w io.Writer, topic string) {
	for _, t := range r.tables[topic] {
		if len(t.rows) > 0 {
			fmt.Fprintln(w)
			t.print(w)
		}
	}
}

// block returns the printed tables of a topic; "" if it was not measured.
func (r *report) block(topic string) string {
	if r.skipped[topic] {
		return ""
	}
	var out strings.Builder
	r.printTables(&out, topic)
	return out.String()
}

func (r *report) writeJSON(path string) error {
	data, err := json.MarshalIndent(struct {
		Machine []string `json:"machine"`
		Rows    []row    `json:"rows"`
	}{r.machine, r.rows}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// table prints as Markdown whose source is aligned as well. A column without a head is printed in the one before.
type table struct {
	title, note string
	head        []string
	rows        [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// joined returns head and rows without the columns that have no head.
func (t *table) joined() [][]string {
	var lines [][]string
	for _, cells := range append([][]string{t.head}, t.rows...) {
		var line []string
		for i, cell := range cells {
			switch last := len(line) - 1; {
			case t.head[i] != "" || last < 0:
				line = append(line, cell)
			case cell != "" && line[last] != "":
				line[last] += ", " + cell
			default:
				line[last] += cell
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func (t *table) print(w io.Writer) {
	fmt.Fprintf(w, "**%s**", t.title)
	if t.note != "" {
		fmt.Fprintf(w, " %s", t.note)
	}
	fmt.Fprint(w, "\n\n")
	lines := t.joined()
	widths := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	rule := make([]string, len(widths))
	for i := range rule {
		rule[i] = strings.Repeat("-", widths[i]-1) + ":"
	}
	rule[0] = strings.Repeat("-", widths[0])
	for _, cells := range slices.Insert(lines, 1, rule) {
		var line strings.Builder
		for i, cell := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString("| " + cell + pad)
			} else {
				line.WriteString(" | " + pad + cell)
			}
		}
		fmt.Fprintln(w, line.String()+" |")
	}
}
