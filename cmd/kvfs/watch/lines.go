package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Lines are the options of kvfs stats.
type Lines struct {
	Interval time.Duration // of a line, above 0
	Count    uint64        // lines after which it ends; 0: never
	JSON     bool          // one object a line
}

// headEvery is after how many lines the head of the table comes again.
const headEvery = 20

// Run prints a line after each interval, until ctx ends, Count lines are printed, or source fails. The end of ctx is no
// error.
func (l *Lines) Run(ctx context.Context, w io.Writer, source Source) error {
	earlier, err := source()
	if err != nil {
		return err
	}
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	for n := uint64(0); l.Count == 0 || n < l.Count; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := source()
		if err != nil {
			return err
		}
		r := Between(earlier, now)
		if err := l.print(w, n, &r); err != nil {
			return err
		}
		earlier = now
	}
	return nil
}

// print writes line n.
func (l *Lines) print(w io.Writer, n uint64, r *Rates) error {
	if l.JSON {
		return json.NewEncoder(w).Encode(r)
	}
	if n%headEvery == 0 {
		if _, err := io.WriteString(w, head); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, r.line())
	return err
}

// columns are the titles of the table. Each value is as wide as its title, or longer where a number is huge.
var columns = []string{
	"   reads", "    bytes/s", "  writes", "    bytes/s", "   hit", "  misses", " promote", " cascade", "   evict",
	"            memory used", "               ssd used", "   queue",
}

// head is the first line of the table.
var head = strings.Join(columns, "") + "\n"

// line returns the rates as a line of the table.
func (r *Rates) line() string {
	values := []string{
		Number(r.Reads), show.Bytes(int64(r.ReadBytes)), Number(r.Writes), show.Bytes(int64(r.WrittenBytes)), Percent(r.HitRatio),
		Number(r.Misses), Number(r.Promotions), Number(r.Cascades), Number(r.Evictions),
		used(r.MemoryUsedBytes, r.MemoryCapacityBytes), used(r.DiskUsedBytes, r.DiskCapacityBytes), fmt.Sprint(r.QueuedBlocks),
	}
	var b strings.Builder
	for i, v := range values {
		fmt.Fprintf(&b, " %*s", len(columns[i])-1, v)
	}
	return b.String() + "\n"
}

// used says how much of a tier is used, "-" without a tier.
func used(n, capacity int64) string {
	if capacity == 0 {
		return "-"
	}
	return show.Bytes(n) + "/" + show.Bytes(capacity)
}

// Percent returns a share in percent, "-" for nil. Only what is whole is 100.
func Percent(share *float64) string {
	switch {
	case share == nil:
		return "-"
	case *share < 1 && *share >= 0.999:
		return "99.9%"
	}
	return fmt.Sprintf("%.1f%%", 100**share)
}

// Number returns a number with at most 4 digits and a unit, or one decimal below 10.
func Number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	case v < 10_000:
		return fmt.Sprintf("%.0f", v)
	case v < 10_000_000:
		return fmt.Sprintf("%.0fk", v/1e3)
	}
	return fmt.Sprintf("%.0fM", v/1e6)
}
