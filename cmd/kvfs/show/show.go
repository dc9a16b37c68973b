// Package show formats values for people: foreign names so that a terminal does not obey them,
// sizes, numbers of blocks, lists, JSON.
package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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

// Count says how often something happened; "" if never.
func Count(what string, n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s %d", what, n)
}

// Counts lists what Count says, in parentheses, or returns "".
func Counts(all ...string) string {
	if all = slices.DeleteFunc(all, func(s string) bool { return s == "" }); len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
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

// Bytes returns n in the largest binary unit that leaves at least 1, with one decimal.
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

// Bar shows the progress of a work in one line, which it rewrites.
type Bar struct {
	w     io.Writer // nil: nothing is shown
	start time.Time
	width int   // of the line on the screen
	share int64 // in percent, as Share last wrote it
}

// NewBar begins a work. If on, it is shown on w.
func NewBar(w io.Writer, on bool) *Bar {
	b := &Bar{start: time.Now(), share: -1}
	if on {
		b.w = w
	}
	return b
}

// Took returns how long the work has taken.
func (b *Bar) Took() time.Duration { return time.Since(b.start) }

// Show writes the line. It ignores errors.
func (b *Bar) Show(done, total, bytes int64) {
	if b.w != nil {
		b.write(line(done, total, bytes, time.Since(b.start)))
	}
}

// Share writes a line with what is done, and the share of it in percent, when that is another than before. It ignores errors.
func (b *Bar) Share(what string, done, total int64) {
	if b.w == nil {
		return
	}
	share := int64(100)
	if total > 0 {
		share = min(100, max(0, int64(100*float64(done)/float64(total))))
	}
	if share != b.share {
		b.share = share
		b.write(fmt.Sprintf("%s  %d %%", what, share))
	}
}

func (b *Bar) write(line string) {
	fmt.Fprintf(b.w, "\r%-*s", b.width, line)
	b.width = len(line)
}

// Clear removes the line.
func (b *Bar) Clear() {
	if b.w != nil && b.width > 0 {
		fmt.Fprintf(b.w, "\r%s\r", strings.Repeat(" ", b.width))
		b.width, b.share = 0, -1
	}
}

// line describes the progress: blocks, share, bytes, rate, and the time left at the same rate.
func line(done, total, bytes int64, took time.Duration) string {
	percent := 100.0
	if total > 0 {
		percent = 100 * float64(done) / float64(total)
	}
	line := fmt.Sprintf("%d/%d blocks  %.1f %%  %s", done, total, percent, Bytes(bytes))
	if took <= 0 || done <= 0 {
		return line
	}
	rate := float64(bytes) / took.Seconds()
	left := time.Duration(float64(took) / float64(done) * float64(max(total-done, 0))).Round(time.Second)
	return fmt.Sprintf("%s  %s/s  %v left", line, Bytes(int64(rate)), left)
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
