package show

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

// Share writes a line with what is done, and the share of it in percent, when that is another than before. It ignores
// errors.
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
