// Package watch is how the numbers of a mount change, for people who look on: kvfs stats and du.
//
//	Sample   the status of a mount at one moment
//	Rates    what happened between two samples, per second, and what is so at the later one
//	Lines    prints Rates as lines or JSON, one for each interval
//	Usage    who uses how much of which tier
package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// Sample is the status of a mount at one moment.
type Sample struct {
	At  time.Time
	Doc *status.Document
}

// Source returns the present sample.
type Source func() (*Sample, error)

// Of returns the source that reads the status of the mount at dir. It fails with exit.NotMount when the daemon has
// gone, and with exit.Runtime if the daemon does not answer or its status has another schema.
func Of(dir string) Source {
	return func() (*Sample, error) {
		text, err := client.Status(dir, mounts.Timeout)
		if err != nil {
			return nil, err
		}
		at := time.Now()
		doc, err := status.Parse(text)
		if err != nil {
			return nil, err
		}
		if doc.Schema != status.Schema {
			return nil, fmt.Errorf("the daemon of %s has another version: its status has schema %d, and this command knows %d", dir, doc.Schema, status.Schema)
		}
		return &Sample{at, doc}, nil
	}
}

// Rates are what happened between two samples, per second, and what is so at the later one.
type Rates struct {
	Time     time.Time `json:"time"`             // of the later sample
	Interval float64   `json:"interval_seconds"` // that the rates are over
	// Restarted says that another daemon answers since the earlier sample. The rates are over the life of that daemon.
	Restarted bool `json:"restarted"`

	Reads        float64  `json:"reads_per_second"` // blocks that a tier gave
	ReadBytes    float64  `json:"read_bytes_per_second"`
	Writes       float64  `json:"writes_per_second"` // blocks committed
	WrittenBytes float64  `json:"written_bytes_per_second"`
	HitRatio     *float64 `json:"hit_ratio"` // of the blocks asked for, the share that a tier gave; nil: none was asked for
	Misses       float64  `json:"misses_per_second"`
	Promotions   float64  `json:"promotions_per_second"` // blocks, from all lower tiers
	Cascades     float64  `json:"cascades_per_second"`   // blocks, to all lower tiers
	Evictions    float64  `json:"evictions_per_second"`  // blocks, from memory

	MemoryUsedBytes     int64 `json:"memory_used_bytes"`
	MemoryCapacityBytes int64 `json:"memory_capacity_bytes"`
	DiskUsedBytes       int64 `json:"disk_used_bytes"` // of all SSD tiers
	DiskCapacityBytes   int64 `json:"disk_capacity_bytes"`
	QueuedBlocks        int64 `json:"queued_blocks"` // that wait to be copied to lower tiers
	QueuedBytes         int64 `json:"queued_bytes"`
}

// totals are the counters that rates are made of.
type totals struct {
	reads, readBytes, writes, writtenBytes, failed, misses, promotions, cascades, evictions uint64
}

func of(d *status.Document) totals {
	t := totals{
		reads: d.Reads.SuccessKeys, writes: d.Counters.Stored, writtenBytes: d.Counters.StoredBytes,
		failed: d.Reads.FailedKeys, misses: d.Reads.UnknownKeys, evictions: d.Counters.Evicted,
	}
	for _, n := range d.Reads.BytesByTier {
		t.readBytes += n
	}
	for i := range d.Secondaries {
		t.promotions += d.Secondaries[i].Promoted
		t.cascades += d.Secondaries[i].Cascaded
	}
	return t
}

// Between returns the rates between two samples of a mount. Counters begin at 0 with each daemon: if another one answers
// now, all that it has done happened since the earlier sample. No rate is negative.
func Between(earlier, now *Sample) Rates {
	was, is := of(earlier.Doc), of(now.Doc)
	r := Rates{Time: now.At, Interval: now.At.Sub(earlier.At).Seconds()}
	if now.Doc.PID != earlier.Doc.PID || now.Doc.UptimeSeconds < earlier.Doc.UptimeSeconds {
		r.Restarted, was = true, totals{}
		r.Interval = min(r.Interval, now.Doc.UptimeSeconds)
	}
	per := func(was, is uint64) float64 {
		if is <= was || r.Interval <= 0 {
			return 0
		}
		return float64(is-was) / r.Interval
	}
	r.Reads, r.ReadBytes = per(was.reads, is.reads), per(was.readBytes, is.readBytes)
	r.Writes, r.WrittenBytes = per(was.writes, is.writes), per(was.writtenBytes, is.writtenBytes)
	r.Misses, r.Promotions = per(was.misses, is.misses), per(was.promotions, is.promotions)
	r.Cascades, r.Evictions = per(was.cascades, is.cascades), per(was.evictions, is.evictions)
	if all := r.Reads + r.Misses + per(was.failed, is.failed); all > 0 {
		ratio := r.Reads / all
		r.HitRatio = &ratio
	}
	r.gauges(now.Doc)
	return r
}

func (r *Rates) gauges(d *status.Document) {
	for i, t := range d.Tiers {
		switch {
		case i == 0: // memory
			r.MemoryUsedBytes, r.MemoryCapacityBytes = t.UsedBytes, t.CapacityBytes
		case t.Type == config.TierDisk:
			r.DiskUsedBytes += t.UsedBytes
			r.DiskCapacityBytes += t.CapacityBytes
		}
	}
	for i := range d.Secondaries {
		r.QueuedBlocks += d.Secondaries[i].QueuedBlocks
		r.QueuedBytes += d.Secondaries[i].QueuedBytes
	}
}

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
