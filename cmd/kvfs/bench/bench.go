// Package bench measures a mount next to tmpfs and a disk, in seconds, with few blocks of its own. For users: tests/bench
// measures kvfs more exactly, with daemons of its own.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers/block"
)

// Options say what is measured.
type Options struct {
	Tmpfs    string // a directory on tmpfs
	Disk     string // a directory on a disk; empty: one is looked for
	Duration time.Duration
	JSON     bool
}

// Run measures a mount, which has the status doc, and prints the report to out. Before that it says on note what it
// writes. It removes that at the end, and when ctx or a signal ends it, which is an error.
func Run(ctx context.Context, o Options, mount string, doc *status.Document, out, note io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	b, err := New(o, mount, doc)
	if err != nil {
		return err
	}
	fmt.Fprintln(note, show.Lines(b.Note()))
	report, err := b.Run(ctx)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err = errors.Join(err, b.Close()); err != nil {
		return err
	}
	if o.JSON {
		return show.JSON(out, report)
	}
	return report.Print(out)
}

// What a run writes: at a time at most maxBytes, and at most a part of memory, so that few blocks of others leave it.
const (
	maxBytes    = 64 << 20
	minBytes    = 16 << 20
	memoryPart  = 8
	maxRewrites = 4 // of all blocks in one measurement: an SSD tier gets copies of them
	rounds      = 3
)

var (
	sizes   = []int{64 << 10, 1 << 20, 4 << 20}
	threads = []int{1, 2}
)

// target is a place that is measured.
type target struct {
	name string
	dir  string // of this run
}

// Bench is one run. Close removes what it has written.
type Bench struct {
	mount   string
	o       Options
	bytes   int64 // of the blocks of one size
	memory  int64 // capacity of the memory tier
	targets []target
	without []string // why a target is left out
	busy    float64  // share of the CPUs that others use
	report  *Report
}

// New makes the directories of a run. doc is the status of the mount. New fails if there is too little room.
func New(o Options, mount string, doc *status.Document) (b *Bench, err error) {
	b = &Bench{mount: mount, o: o, bytes: maxBytes}
	if len(doc.Tiers) == 0 {
		return nil, errors.New("the status of the mount has no tiers")
	}
	memory := doc.Tiers[0]
	b.memory = memory.CapacityBytes
	if err := b.fit("memory of "+mount, min(memory.CapacityBytes/memoryPart, memory.CapacityBytes-memory.PinnedBytes), "a bench uses an eighth of memory.size, and no pinned part"); err != nil {
		return nil, err
	}
	free, _, err := room(o.Tmpfs)
	if err == nil {
		err = b.fit(o.Tmpfs, free/2, "a bench uses half of what is free")
	}
	if err != nil {
		return nil, err
	}
	places := [][2]string{{"kvfs", mount}, {"tmpfs", o.Tmpfs}}
	if disk, why := b.disk(); why == "" {
		places = append(places, [2]string{"disk", disk})
	} else {
		b.without = append(b.without, why)
	}
	for _, p := range places {
		dir, err := os.MkdirTemp(p[1], block.BenchPrefix)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		b.targets = append(b.targets, target{p[0], dir})
	}
	b.busy = watch()
	return b, nil
}

// fit lowers the bytes of the run to those that a place has room for.
func (b *Bench) fit(place string, bytes int64, why string) error {
	if bytes < minBytes {
		return fmt.Errorf("%s has too little room: %s where %s are needed (%s)", place, show.Bytes(max(bytes, 0)), show.Bytes(minBytes), why)
	}
	b.bytes = min(b.bytes, bytes)
	return nil
}

// tmpfsMagic is TMPFS_MAGIC of include/uapi/linux/magic.h.
const tmpfsMagic = 0x01021994

// room returns how many bytes are free in the file system of a directory, and whether that is tmpfs.
func room(dir string) (free int64, tmpfs bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, st.Type == tmpfsMagic, nil
}

// disk returns a directory on a disk with room, or why there is none.
func (b *Bench) disk() (dir, why string) {
	candidates := []string{b.o.Disk}
	if b.o.Disk == "" {
		candidates = []string{os.TempDir(), "/var/tmp"}
	}
	for _, dir := range candidates {
		free, tmpfs, err := room(dir)
		switch {
		case err != nil:
			why = err.Error()
		case tmpfs && b.o.Disk == "":
			why = dir + " is in memory"
		case free/2 < b.bytes:
			why = fmt.Sprintf("%s has too little room: %s are free", dir, show.Bytes(free))
		default:
			return dir, ""
		}
	}
	return "", "no disk: " + why + "; name another directory by --disk"
}

// Note says in a line what the run writes.
func (b *Bench) Note() string {
	var dirs []string
	for _, t := range b.targets {
		dirs = append(dirs, filepath.Dir(t.dir))
	}
	line := fmt.Sprintf("measuring %s for about %v, with at most %s of blocks in each: up to that much of other blocks may leave the memory of %s (%s)",
		strings.Join(dirs, ", "), b.o.Duration, show.Bytes(b.bytes), b.mount, show.Bytes(b.memory))
	lines := append([]string{line}, b.without...)
	if warning := busyNote(b.busy); warning != "" {
		lines = append(lines, warning)
	}
	return strings.Join(lines, "\n")
}

// Run measures until it is done or ctx ends.
func (b *Bench) Run(ctx context.Context) (*Report, error) {
	b.report = &Report{Mount: b.mount, Bytes: b.bytes, Without: b.without, Busy: b.busy}
	for _, t := range b.targets {
		b.report.Targets = append(b.report.Targets, t.name)
	}
	passes := rounds * len(b.targets) * (2*len(sizes)*len(threads) + len(threads))
	each := b.o.Duration / time.Duration(passes)
	for _, size := range sizes {
		if err := b.size(ctx, size, each); err != nil {
			return nil, err
		}
	}
	return b.report, nil
}

// size measures blocks of one size.
func (b *Bench) size(ctx context.Context, size int, each time.Duration) (err error) {
	sets := make([]*blocks, len(b.targets))
	for i, t := range b.targets {
		sets[i] = &blocks{dir: filepath.Join(t.dir, show.Bytes(int64(size))), size: size, count: int(b.bytes) / size}
		defer func() { err = errors.Join(err, sets[i].remove()) }()
		if err := sets[i].fill(ctx); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	for _, n := range threads {
		for _, op := range operations {
			if op.anySize && size != sizes[0] {
				continue
			}
			if err := b.contest(ctx, &op, sets, n, each); err != nil {
				return err
			}
		}
	}
	return nil
}

// contest measures one operation in all targets, in turns. The figure of each is the median of its rounds.
func (b *Bench) contest(ctx context.Context, op *operation, sets []*blocks, threads int, each time.Duration) error {
	rates := make([][]float64, len(sets))
	for round := range rounds {
		for i := range sets {
			at := (round + i) % len(sets) // so that none always follows the same neighbour
			rate, err := sets[at].pass(ctx, op, threads, each)
			if err != nil {
				return fmt.Errorf("%s: %w", b.targets[at].name, err)
			}
			rates[at] = append(rates[at], rate)
		}
	}
	row := Row{Operation: op.name, Threads: threads, Figures: map[string]float64{}}
	scale := 1.0
	if !op.anySize {
		row.BlockBytes, row.Unit, scale = sets[0].size, "GB/s", float64(sets[0].size)/1e9
	} else {
		row.Unit = "a second"
	}
	for i, t := range b.targets {
		slices.Sort(rates[i])
		row.Figures[t.name] = rates[i][len(rates[i])/2] * scale
	}
	if tmpfs := row.Figures["tmpfs"]; tmpfs > 0 {
		row.Ratio = row.Figures["kvfs"] / tmpfs
	}
	b.report.Rows = append(b.report.Rows, row)
	return nil
}

// Close removes the directories of the run.
func (b *Bench) Close() error {
	var errs []error
	for _, t := range b.targets {
		errs = append(errs, os.RemoveAll(t.dir))
	}
	return errors.Join(errs...)
}
