// Bench measures kvfs against what a user would have without it: a tmpfs with huge pages, a directory on the disk with
// its page cache hot, a plain tmpfs, fio, iperf3, Redis and other stores. docs/benchmarks.md has its tables;
// docs/performance.md says what they mean.
//
// A topic (topics.go) is a function that sets up what it compares, as a test does (job.go), has the sides measured in
// turns (rotate), and adds rows to tables. All sides are measured in the same run by the same client: bare system calls
// from separate threads (client.go). A figure is the median of the rounds; a ratio is a ratio of medians. Memory is
// warmed before the timing, because the first touch of fresh memory measures the machine, not the file system. Blocks
// have marks that are checked before and after the timed passes.
//
//	go run ./tests/bench            # everything, hours, about 8 GiB of memory
//	go run ./tests/bench -quick     # smoke test, a minute
//	go run ./tests/bench -list      # the topics
//	go run ./tests/bench -only read,ops -sizes 64KiB
//	go run ./tests/bench -only cold -docs docs/benchmarks.md
//
// With -docs a run that went well puts its tables into a page, between the lines <!-- bench: TOPIC --> and <!-- end -->
// of each topic that it measured. The rest of the page stays as it is.
//
// A topic needs root for network namespaces and some mounts, a disk for -disk, and programs to compare with: what is
// missing is left out, and said. The topic ttft needs Node.js 20.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/kvfs/kvfs/tests/figures"
)

type bench struct {
	config  *config
	report  *report
	pool    *pool
	pattern []byte // content of the buffers of new clients
	points  []point

	workDir  string // ours, removed at the end
	kvfsPath string
}

func newBench(c *config) *bench {
	return &bench{config: c, report: newReport(), kvfsPath: c.kvfs, pool: &pool{}}
}

// The death signal of a child depends on the thread that starts it: see server.
func init() { runtime.LockOSThread() }

func main() {
	var err error
	if text := os.Getenv(roleEnv); text != "" {
		err = play(text)
	} else if c, flagErr := parseFlags(os.Args[1:]); flagErr == nil {
		err = run(c)
	} else if !errors.Is(flagErr, flag.ErrHelp) {
		err = flagErr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(c *config) error {
	if c.list {
		for _, t := range topicTable() {
			fmt.Println(t.name)
		}
		return nil
	}
	if c.docsPath != "" {
		if err := performance(c.docsPath).Check(c.only); err != nil {
			return err
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel) // the second ^C ends the program at once
	defer cancel()
	ctx, cancelLimit := context.WithTimeoutCause(ctx, c.limit, fmt.Errorf("not done after -timeout %v", c.limit))
	defer cancelLimit()
	b := newBench(c)
	err := try(b.setup)
	if err == nil {
		fmt.Println(c.measured(time.Now()))
		err = b.measure(ctx)
		b.report.print(os.Stdout)
	}
	if c.docsPath != "" && err == nil {
		err = writePage(c.docsPath, c.measured(time.Now()), b.report)
	}
	if c.plotDir != "" && err == nil {
		err = figures.WritePlots(c.plotDir, plots(b.points))
	}
	return errors.Join(err, b.close())
}

func (b *bench) setup() {
	// A processor for each client in a system call, one for this goroutine and one for signals.
	clients, size := max(b.config.maxThreads, coldReaders), max(16*mib, slices.Max(b.config.sizes))
	runtime.GOMAXPROCS(max(runtime.NumCPU(), clients+2))
	b.workDir = get(os.MkdirTemp(os.TempDir(), "kvfs-bench-"))
	b.pool = newPool(clients, size)
	b.pattern = make([]byte, size)
	fillPattern(b.pattern)
	if b.kvfsPath == "" {
		b.kvfsPath = filepath.Join(b.workDir, "kvfs.bin")
		command(context.Background(), "go", "build", "-tags=giouring", "-ldflags=-checklinkname=0", "-o", b.kvfsPath, "github.com/kvfs/kvfs/cmd/kvfs")
	}
}

// measure measures the topics of -only. If one fails, the others are still measured.
func (b *bench) measure(ctx context.Context) error {
	var errs []error
	for _, t := range topicTable() {
		if !slices.Contains(b.config.only, t.name) || ctx.Err() != nil {
			continue
		}
		if why := t.lacks(b); why != "" {
			b.report.skip(t.name, why)
			continue
		}
		b.say("%s", t.name)
		if err := b.newJob(ctx, t.name).do(t.run); err != nil && !errors.Is(err, errSkipped) {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// close removes what setup made. It uses rmdir for mount points, so a remaining mount is never emptied.
func (b *bench) close() error {
	entries, err := os.ReadDir(b.workDir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(b.workDir, e.Name())))
	}
	return errors.Join(err, os.Remove(b.workDir), try(b.pool.close))
}

// say reports progress to the user; figures go to the report.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
