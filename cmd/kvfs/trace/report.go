package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Report is the result of a replay.
type Report struct {
	Seconds         float64    `json:"seconds"`          // how long the replay took
	RecordedSeconds float64    `json:"recorded_seconds"` // how long the trace is
	LateSeconds     float64    `json:"late_seconds"`     // the most that an operation began after its time
	Lost            int64      `json:"lost"`             // operations that the trace misses
	HitRatio        *float64   `json:"hit_ratio"`        // look-ups and reads that found their block; null: there were none
	RecordedRatio   *float64   `json:"recorded_hit_ratio"`
	ReadRate        float64    `json:"read_bytes_per_second"`
	WriteRate       float64    `json:"written_bytes_per_second"`
	Ops             []OpReport `json:"operations"`
}

// OpReport is about all operations of one kind. Times are in seconds.
type OpReport struct {
	Do     string           `json:"operation"`
	Count  int64            `json:"count"`
	Misses int64            `json:"misses"` // of Lookup and Read
	Errors map[string]int64 `json:"errors"` // by name of the errno
	Bytes  int64            `json:"bytes"`
	P50    float64          `json:"p50_seconds"`
	P90    float64          `json:"p90_seconds"`
	P99    float64          `json:"p99_seconds"`
	Max    float64          `json:"max_seconds"`
}

// tally counts operations.
type tally struct {
	ops  map[string]*opTally
	late time.Duration

	// Of the trace.
	lost, asked, found int64
	length             int64 // microseconds
}

type opTally struct {
	misses, bytes int64
	errors        map[string]int64
	took          []time.Duration
}

func newTally() *tally { return &tally{ops: map[string]*opTally{}} }

// of returns the counts of operations of one kind.
func (t *tally) of(do string) *opTally {
	o := t.ops[do]
	if o == nil {
		o = &opTally{errors: map[string]int64{}}
		t.ops[do] = o
	}
	return o
}

// record counts what the trace says.
func (t *tally) record(op *Op) {
	t.length = max(t.length, op.At)
	switch op.Do {
	case Lost:
		t.lost += op.Size
	case Lookup, Read:
		t.asked++
		if !op.Miss && op.Failed == "" {
			t.found++
		}
	}
}

// add counts an operation that was performed.
func (t *tally) add(op *Op, bytes int64, err error, took time.Duration) {
	o := t.of(op.Do)
	o.bytes += bytes
	o.took = append(o.took, took)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrNotExist) && op.Do != Write:
		o.misses++
	default:
		name := "other"
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			name = unix.ErrnoName(errno)
		}
		o.errors[name]++
	}
}

// merge adds the counts of another.
func (t *tally) merge(other *tally) {
	t.late = max(t.late, other.late)
	for do, o := range other.ops {
		sum := t.of(do)
		sum.misses, sum.bytes, sum.took = sum.misses+o.misses, sum.bytes+o.bytes, append(sum.took, o.took...)
		for name, n := range o.errors {
			sum.errors[name] += n
		}
	}
}

// report returns the result of a replay that took so long.
func (t *tally) report(took time.Duration) *Report {
	r := &Report{Seconds: took.Seconds(), RecordedSeconds: float64(t.length) / 1e6, LateSeconds: t.late.Seconds(), Lost: t.lost,
		RecordedRatio: ratio(t.found, t.asked), Ops: []OpReport{}}
	var asked, found int64
	for _, do := range []string{Lookup, Read, Write, Rename, Remove} {
		o := t.ops[do]
		if o == nil {
			continue
		}
		slices.Sort(o.took)
		count := int64(len(o.took))
		r.Ops = append(r.Ops, OpReport{do, count, o.misses, o.errors, o.bytes,
			quantile(o.took, 0.5), quantile(o.took, 0.9), quantile(o.took, 0.99), quantile(o.took, 1)})
		rate := float64(o.bytes) / max(took.Seconds(), 1e-9)
		switch do {
		case Lookup, Read:
			asked, found = asked+count, found+count-o.misses-failures(o.errors)
			r.ReadRate += rate
		case Write:
			r.WriteRate = rate
		}
	}
	r.HitRatio = ratio(found, asked)
	return r
}

func failures(errors map[string]int64) (n int64) {
	for _, k := range errors {
		n += k
	}
	return n
}

func ratio(n, of int64) *float64 {
	if of == 0 {
		return nil
	}
	r := float64(n) / float64(of)
	return &r
}

// quantile returns the smallest of sorted times that a share q of them does not exceed, in seconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(i, 0)].Seconds()
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	percent := func(r *float64) string {
		if r == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f%%", *r*100)
	}
	fmt.Fprintf(w, "%.1f s for a trace of %.1f s\n", r.Seconds, r.RecordedSeconds)
	fmt.Fprintf(w, "hits       %s (recorded: %s)\n", percent(r.HitRatio), percent(r.RecordedRatio))
	fmt.Fprintf(w, "read       %s/s\nwritten    %s/s\n", show.Bytes(int64(r.ReadRate)), show.Bytes(int64(r.WriteRate)))
	if r.LateSeconds > 0.1 {
		fmt.Fprintf(w, "late       %.1f s: the target is slower than the trace\n", r.LateSeconds)
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "lost       %d operations are not in the trace\n", r.Lost)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nOPERATION\tCOUNT\tMISSES\tERRORS\tBYTES\tHALF WITHIN\t90% WITHIN\t99% WITHIN\tLONGEST")
	for _, o := range r.Ops {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s", o.Do, o.Count, o.Misses, failures(o.Errors), show.Bytes(o.Bytes))
		for _, s := range []float64{o.P50, o.P90, o.P99, o.Max} {
			fmt.Fprintf(t, "\t%v", time.Duration(s*float64(time.Second)).Round(time.Microsecond))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, o := range r.Ops {
		for name, n := range o.Errors {
			if _, err := fmt.Fprintf(w, "%s: %s %d times\n", o.Do, name, n); err != nil {
				return err
			}
		}
	}
	return nil
}
