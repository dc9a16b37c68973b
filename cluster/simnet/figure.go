package simnet

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
)

const figureMark = "figure: "

// Figure is a cell of a table in docs/cluster.md. A test logs it, and tests/simulate finds it in the log.
type Figure struct {
	Table, Row, Column string
	Value              float64
	Unit               string // s, B, B/s, or empty: a number of things
}

// String returns the figure as ParseFigure reads it.
func (f Figure) String() string {
	text, err := json.Marshal(f)
	if err != nil {
		return err.Error() // of a value that is no number
	}
	return figureMark + string(text)
}

// ParseFigure returns the figure in a line of a log, and whether there is one.
func ParseFigure(line string) (f Figure, ok bool) {
	_, text, ok := strings.Cut(line, figureMark)
	return f, ok && json.Unmarshal([]byte(text), &f) == nil
}

// Sizes returns the numbers of nodes to simulate: 10, and up to KVFS_SIM if that is set.
func Sizes() []int {
	sizes := []int{10}
	most, err := strconv.Atoi(os.Getenv("KVFS_SIM"))
	if err != nil || most <= 10 {
		return sizes
	}
	for _, n := range []int{100, 300, 1000} {
		if n < most {
			sizes = append(sizes, n)
		}
	}
	return append(sizes, most)
}
