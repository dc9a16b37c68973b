// Package show formats values for people: foreign names so that a terminal does not obey them,
// sizes, numbers of blocks, lists, JSON.
package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kvfs/kvfs/fs/query"
)

// Text returns a foreign name or text for printing. It escapes characters that a terminal would
// obey, bytes that are no character, and backslashes, as Go does.
func Text(s string) string { return query.Escape(s) }

// Lines is Text for several lines whose names are already escaped: it keeps backslashes.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		parts := strings.Split(line, `\`)
		for j := range parts {
			parts[j] = Text(parts[j])
		}
		lines[i] = strings.Join(parts, `\`)
	}
	return strings.Join(lines, "\n")
}

// State returns a state and the reason for it.
func State(state, reason string) string {
	if reason == "" {
		return OrDash(state)
	}
	return OrDash(state) + " (" + reason + ")"
}

// Moved says how much has moved between tiers.
func Moved(blocks, bytes uint64) string {
	return fmt.Sprintf("%s, %s", Blocks(int64(blocks)), Bytes(int64(bytes)))
}

// Tally is how often something happened.
type Tally struct {
	what string
	n    uint64
}

// Count returns the tally of what, which happened n times.
func Count(what string, n uint64) Tally { return Tally{what, n} }

// Counts lists the tallies above zero, in parentheses, or returns "".
func Counts(all ...Tally) string {
	var parts []string
	for _, c := range all {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", c.what, c.n))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// OrDash returns s, or "-" if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// BytesOrDash is Bytes, with a dash for 0.
func BytesOrDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return Bytes(n)
}

// Bytes returns n in the largest binary unit that leaves at least 1, with
// one decimal.
func Bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// Reason is an error without the path that it is about.
func Reason(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// JSON writes v, indented.
func JSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// Blocks returns a number of blocks in words.
func Blocks(n int64) string {
	if n == 1 {
		return "1 block"
	}
	return fmt.Sprintf("%d blocks", n)
}
