package trace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Replay says how a trace is played.
type Replay struct {
	Speed Speed // how many times as fast as it was recorded; 0: each operation as soon as the one before is done
	Fill  bool  // first write the blocks that are read in the trace and were there before it
	Keep  bool  // leave what the replay has written
	JSON  bool  // of Print
}

// Print runs the replay until ctx or a signal ends it, and prints the report to out.
func (o Replay) Print(ctx context.Context, file, dir string, out io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	report, err := o.Run(ctx, file, dir)
	if report == nil {
		return err
	}
	if err == nil && ctx.Err() != nil {
		err = errors.New("interrupted: the report is about a part of the trace")
	}
	if o.JSON {
		return errors.Join(show.JSON(out, report), err)
	}
	return errors.Join(report.Print(out), err)
}

// Speed is the value of a flag: a number above 0, or max, which is 0.
type Speed float64

// Set reads the value.
func (s *Speed) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case text == "max":
		n = 0
	case err != nil || !(n > 0 && n <= 1e6):
		return errors.New("neither a number above 0 nor max")
	}
	*s = Speed(n)
	return nil
}

// String returns the text of the value.
func (s *Speed) String() string {
	if *s == 0 {
		return "max"
	}
	return strconv.FormatFloat(float64(*s), 'g', -1, 64)
}

// Type names the values in help texts.
func (s *Speed) Type() string { return "N|max" }

// Limits of a replay.
const (
	maxWorkers = 64      // processes of the trace share these
	maxAhead   = 1024    // operations that wait for one worker
	chunkBytes = 4 << 20 // of one read or write
)

// player is one replay under way.
type player struct {
	Replay
	dir     string
	start   time.Time
	pattern []byte // what blocks are made of: it cannot be compressed

	mu struct {
		sync.Mutex
		files map[string]bool // those that have been written by this replay: true; they are removed at the end
		dirs  []string        // made by this replay, outer ones first
	}
}

// Run plays the trace in a file below dir, which need not be a mount of kvfs, until its end or that of ctx, and removes
// what it wrote. A failed operation is counted in the report.
func (o Replay) Run(ctx context.Context, file, dir string) (*Report, error) {
	if st, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	p := &player{Replay: o, dir: dir, pattern: make([]byte, chunkBytes)}
	src := rand.NewChaCha8([32]byte{})
	src.Read(p.pattern)
	p.mu.files = map[string]bool{}
	report, err := p.run(ctx, file)
	if !o.Keep {
		err = errors.Join(err, p.cleanUp())
	}
	return report, err
}

func (p *player) run(ctx context.Context, file string) (*Report, error) {
	if p.Fill {
		if err := p.fill(ctx, file); err != nil {
			return nil, fmt.Errorf("fill: %w", err)
		}
	}
	r, err := open(file)
	if err != nil {
		return nil, err
	}
	defer r.file.Close()
	sum, workers := newTally(), map[int]*worker{}
	var wg sync.WaitGroup
	p.start = time.Now()
	for ctx.Err() == nil && err == nil {
		var op Op
		if op, err = r.next(); err != nil {
			break
		}
		if sum.record(&op); op.Do == Lost {
			continue
		}
		n := op.Worker % maxWorkers
		w := workers[n]
		if w == nil {
			w = &worker{p: p, n: n, ops: make(chan Op, maxAhead), tally: newTally()}
			workers[n] = w
			wg.Go(func() { w.work(ctx) }) // ends with ops
		}
		w.ops <- op // it takes all, also after the end of ctx
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	for _, w := range workers {
		close(w.ops)
	}
	wg.Wait()
	took := time.Since(p.start)
	for _, w := range workers {
		sum.merge(w.tally)
	}
	return sum.report(took), err
}

// fill writes the blocks that the trace reads before it writes them.
func (p *player) fill(ctx context.Context, file string) error {
	r, err := open(file)
	if err != nil {
		return err
	}
	defer r.file.Close()
	known := map[string]bool{}
	w := &worker{p: p}
	for ctx.Err() == nil {
		op, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !known[op.Path] && op.Do == Read && !op.Miss && op.Failed == "" {
			if _, err := w.write(&op); err != nil {
				return err
			}
		}
		known[op.Path] = true
		if op.Do == Rename {
			known[op.To] = true
		}
	}
	return ctx.Err()
}

// worker plays the operations of one process, or of some.
type worker struct {
	p     *player
	n     int // its number
	ops   chan Op
	buf   []byte
	tally *tally
}

func (w *worker) work(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for op := range w.ops {
		if w.p.Speed > 0 {
			due := w.p.start.Add(time.Duration(float64(op.At) / float64(w.p.Speed) * float64(time.Microsecond)))
			timer.Reset(time.Until(due))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			w.tally.late = max(w.tally.late, time.Since(due))
		}
		if ctx.Err() != nil {
			continue
		}
		began := time.Now()
		n, err := w.perform(&op)
		w.tally.add(&op, n, err, time.Since(began))
	}
}

// perform does one operation, and returns how many bytes it moved.
func (w *worker) perform(op *Op) (int64, error) {
	name := filepath.Join(w.p.dir, op.Path)
	switch op.Do {
	case Lookup:
		_, err := os.Lstat(name)
		return 0, err
	case Read:
		return w.read(name)
	case Write:
		return w.write(op)
	}
	if !w.p.owns(name) { // the file of somebody else, or none
		return 0, unix.ENOENT
	}
	if op.Do == Rename {
		return 0, w.p.rename(name, filepath.Join(w.p.dir, op.To))
	}
	return 0, unix.Unlink(name)
}

// read reads a block whole.
func (w *worker) read(name string) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if w.buf == nil {
		w.buf = make([]byte, chunkBytes)
	}
	for all := int64(0); ; {
		n, err := f.Read(w.buf)
		all += int64(n)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// write writes a block as engines do: under a temporary name, which is then renamed.
func (w *worker) write(op *Op) (int64, error) {
	name := filepath.Join(w.p.dir, op.Path)
	tmp := fmt.Sprintf("%s.%d.tmp", name, w.n)
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(tmp, flags, 0o644)
	if errors.Is(err, os.ErrNotExist) {
		if err = w.p.mkdir(filepath.Dir(name)); err == nil {
			f, err = os.OpenFile(tmp, flags, 0o644)
		}
	}
	if err != nil {
		return 0, err
	}
	var all int64
	for err == nil && all < op.Size {
		var n int
		n, err = f.Write(w.p.pattern[:min(op.Size-all, chunkBytes)])
		all += int64(n)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = w.p.rename(tmp, name)
	}
	if err != nil {
		return all, errors.Join(err, os.Remove(tmp))
	}
	return all, nil
}

// owns reports whether a file was written by this replay.
func (p *player) owns(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.files[name]
}

// rename renames a file of this replay, which it then owns under the new name. It replaces only such files.
func (p *player) rename(from, to string) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if p.owns(to) {
		flags = 0
	}
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.files[to] = true
	return nil
}

// mkdir makes a directory and those above it, and remembers which it made.
func (p *player) mkdir(dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing []string
	for d := dir; len(d) > len(p.dir); d = filepath.Dir(d) {
		if _, err := os.Lstat(d); err == nil {
			break
		}
		missing = append(missing, d)
	}
	for _, d := range slices.Backward(missing) {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		p.mu.dirs = append(p.mu.dirs, d)
	}
	return nil
}

// cleanUp removes what the replay has written. Directories that others use stay.
func (p *player) cleanUp() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for name := range p.mu.files {
		if err := unix.Unlink(name); err != nil && err != unix.ENOENT && len(errs) < 3 {
			errs = append(errs, &os.PathError{Op: "remove", Path: name, Err: err})
		}
	}
	for _, dir := range slices.Backward(p.mu.dirs) {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT && err != unix.ENOTEMPTY {
			errs = append(errs, &os.PathError{Op: "remove", Path: dir, Err: err})
		}
	}
	return errors.Join(errs...)
}
