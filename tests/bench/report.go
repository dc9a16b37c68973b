package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/figures"
)

// report collects the tables of each topic.
type report struct {
	tables  map[string][]*table
	skipped map[string]bool
}

func newReport() *report { return &report{tables: map[string][]*table{}, skipped: map[string]bool{}} }

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
	r.table(topic, "Not measured: "+topic, "", "why").row("skipped: " + why)
}

func (r *report) print(w io.Writer) {
	for _, topic := range topics() {
		r.printTables(w, topic)
	}
}

func (r *report) printTables(w io.Writer, topic string) {
	for _, t := range r.tables[topic] {
		if len(t.rows) > 0 {
			fmt.Fprintln(w)
			t.print(w)
		}
	}
}

// performance is the page that has a block for each topic.
func performance(file string) figures.Page { return figures.Page{File: file, Topics: topics()} }

// writePage puts the tables of the measured topics into a page.
func writePage(file, measured string, r *report) error {
	with := map[string]string{}
	for topic := range r.tables {
		var text strings.Builder
		if r.printTables(&text, topic); text.Len() > 0 && !r.skipped[topic] {
			with[topic] = "\n" + measured + "\n" + text.String() + "\n"
		}
	}
	return performance(file).Fill(with)
}

// measured says in a line what the tables of a page are from.
func (c *config) measured(at time.Time) string {
	return fmt.Sprintf("Measured on %s: %s, %d cores, Linux %s; %d rounds.", at.Format(time.DateOnly), processor(), runtime.NumCPU(), kernel(), c.rounds)
}

// table prints as Markdown whose source is aligned as well.
type table struct {
	title, note string
	head        []string
	rows        [][]string
}

// row adds cells: a string as it is, samples as their median, a number with two digits, a count.
func (t *table) row(cells ...any) {
	line := make([]string, len(t.head)) // missing ones are empty
	for i, c := range cells {
		switch c := c.(type) {
		case samples:
			line[i] = fmt.Sprintf("%.2f", median(c))
		case float64:
			line[i] = fmt.Sprintf("%.2f", c)
		default:
			line[i] = fmt.Sprint(c)
		}
	}
	t.rows = append(t.rows, line)
}

func (t *table) print(w io.Writer) {
	fmt.Fprintf(w, "**%s**", t.title)
	if t.note != "" {
		fmt.Fprintf(w, " %s", t.note)
	}
	fmt.Fprint(w, "\n\n")
	lines := append([][]string{t.head}, t.rows...)
	widths := make([]int, len(t.head))
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

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "of unknown release"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // Absent: unknown.
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// memInfo returns a field of /proc/meminfo in bytes, 0 if there is none.
func memInfo(field string) int {
	info, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == field+":" {
			n, _ := strconv.Atoi(f[1])
			return n * kib
		}
	}
	return 0
}

// fsType is the kind of file system of a directory.
func fsType(dir string) string {
	out, _ := exec.Command("findmnt", "-n", "-o", "FSTYPE", "-T", dir).Output() // empty: unknown
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1] // of mounts over one another the last is seen
}
