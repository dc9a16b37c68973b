// Bench measures kvfs against what a user would have without it: a tmpfs with huge pages, a
// directory on the disk with its page cache hot, and a plain tmpfs. Ratios of blocks in memory are to
// the best of these. go-fuse's loopback file system over tmpfs stands beside them.
//
// All targets are measured in the same run, in turns, by the same client: bare system calls from
// separate threads (client.go). A figure is the median of the rounds; a ratio is a ratio of
// medians. Memory is warmed before the timing, because the first touch of fresh memory measures the
// machine, not the file system. Blocks have marks that are checked before and after the timed
// passes.
//
//	go run ./tests/bench            # everything, some minutes, about 8 GiB of memory
//	go run ./tests/bench -quick     # smoke test, seconds
//	go run ./tests/bench -only read,ops -sizes 64KiB
//	go run ./tests/bench -only cold -docs docs/benchmarks.md
//
// With -docs a run that went well puts its tables into a page, between the lines <!-- bench: TOPIC --> and <!-- end --> of
// each topic that it measured. The rest of the page stays as it is.
//
// The topics of -only: read, write (a rewrite by rename, as vLLM does), fresh (the
// same with new names), open, stat, ops (FUSE requests for each of them), cpu
// (of the daemon, for each GB read), readdir, heap (a thousand to ten million small blocks: heap
// for each, and adoption after a crash).
//
// Those of the disk tier, in a separate directory under -disk and with separate daemons: cold
// (reads of blocks that only the disk tier has, beside fio and a plain directory), drain (the rate
// at which the cascade empties its queue, beside fio), hotcascade (how much a cascade slows hot
// reads), recovery (start with and without the index), lookfirst (look-ups that bring blocks up, beside opens that do). Fio runs io_uring with O_DIRECT in the same
// directory and the same rounds, 8 requests deep, in cold as many as there are readers. Without fio the other figures are measured and
// the tables say what is missing.
//
// Those of peers, with daemons in network namespaces (as root): peer (promotion from another node's
// memory, beside iperf3), peerlatency (of one cold block, beside a bare loop of sendfile and Redis), lookup
// (in three nodes, counting packets), replica (the rate of copies), fleet (50 nodes:
// how soon they know each other, and of a dead one, and what each costs), rdma (bare transports:
// libfabric over its provider tcp, beside our TCP transport and iperf3) and registration (of files
// with libfabric). The last two need a build with cgo and -tags ofi, and the library; otherwise the
// tables say what is missing.
//
// Those of the control directory, with separate daemons: query (exists and longest_hit through
// .kvfs/query, beside os.path.exists and access(2)), prefetch (from the SSD, beside reads; it
// belongs to the disk tier), events (how much followers and ZeroMQ subscribers slow writers, with
// 100,000 events a second).
//
// That of modes: store (hot reads and writes through a mount of a standalone store, beside an
// embedded mount; and what kvfs run adds to the time of a command). That of upgrades: takeover (how long a client waits
// while a new daemon takes a mount over).
//
// That of an engine: ttft (time to first token of a prompt that llama.cpp computes, or whose state it reads from memory,
// SSD or a peer). It needs Node.js 20 and npm, which installs llama.cpp once; otherwise the table says what is missing.
//
// That of other stores: rivals (reads and writes of blocks in memory, beside Redis, memcached, JuiceFS and SeaweedFS on this
// machine). What is not installed is left out, and the tables say so.
//
// That of object storage: object (loads, stores and the index of a tier on a real S3 server on this machine, beside bare
// requests of an S3 client). The server is built from tests/s3, and its objects are in a directory under -shm.
//
// kvfs is started as 'kvfs mount --memory-size SIZE --ready-fd 3 DIR', with a disk tier also
// '--disk path=DIR,size=SIZE --disk-cascade async --disk-cascade-queue SIZE'. From .kvfs/status the
// bench reads "mount": {"ops": {name: count}} and "process": {"heap_bytes": n}; a topic without its
// figure prints n/a. For the disk tier it needs the entry "disk" of "secondaries".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kvfs/kvfs/tests/figures"
)

// bench is one run of the program.
type bench struct {
	config *config
	report *report
	pool   *pool

	workDir, shmDir, hugeDir, diskDir, tierDir string // ours, removed at the end; empty: not made
	kvfsPath                                   string
	targets                                    []*target
	closing                                    chan struct{} // closed when close begins

	mu struct {
		sync.Mutex
		servers []*server
	}
}

// The death signal of a child depends on the thread that starts it: see server.
func init() { runtime.LockOSThread() }

func main() {
	if text := os.Getenv(roleEnv); text != "" {
		if err := play(text); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err == nil {
		err = run(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(c *config) error {
	if c.docsPath != "" {
		if err := performance(c.docsPath).Check(c.measuredTopics()); err != nil {
			return err
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel) // the second ^C ends the program at once
	defer cancel()
	ctx, cancelLimit := context.WithTimeoutCause(ctx, c.limit,
		fmt.Errorf("not done after -timeout %v", c.limit))
	defer cancelLimit()
	// A processor for each client in a system call, one for this goroutine and
	// one for signals.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), c.maxThreads+2))

	b := &bench{config: c, report: newReport(c.quick), closing: make(chan struct{})}
	context.AfterFunc(ctx, b.killHanging)
	err := b.setup(ctx)
	if err == nil {
		b.report.machine = b.machine()
		b.pool, err = newPool(c.maxThreads, max(mib, slices.Max(c.sizes)))
	}
	if err == nil {
		err = b.measure(ctx)
	}
	b.report.print(os.Stdout)
	if c.docsPath != "" && err == nil {
		err = writePage(c.docsPath, c.measured(time.Now()), b.report)
	}
	if c.plotDir != "" {
		err = errors.Join(err, figures.WritePlots(c.plotDir, plots(b.report.rows)))
	}
	if c.jsonPath != "" {
		err = errors.Join(err, b.report.writeJSON(c.jsonPath))
	}
	return errors.Join(err, b.close())
}

func (b *bench) measure(ctx context.Context) error {
	perSize := []string{"read", "write", "fresh", "open", "stat", "ops", "cpu"}
	if b.config.wants(perSize...) {
		for _, size := range b.config.sizes {
			if err := b.measureSize(ctx, size); err != nil {
				return err
			}
		}
	}
	if b.config.wants("readdir") {
		if err := b.readdir(ctx); err != nil {
			return err
		}
	}
	err := errors.Join(b.measureDiskTier(ctx), b.measurePeers(ctx), b.measureControl(ctx), b.measureStore(ctx), b.measureTakeover(ctx),
		b.measureTTFT(ctx), b.measureRivals(ctx), b.measureObject(ctx))
	if err != nil {
		return err
	}
	if b.config.wants("heap") && b.target(kvfsName) != nil {
		return b.heap(ctx)
	}
	return nil
}

// target returns the one with that name, or nil if it is not measured.
func (b *bench) target(name string) *target {
	for _, t := range b.targets {
		if t.name == name {
			return t
		}
	}
	return nil
}

// killHanging runs when the run is interrupted or out of time. Clients that hang in a daemon
// without an answer return when the daemon is dead.
func (b *bench) killHanging() {
	const grace = 10 * time.Second
	select {
	case <-b.closing:
		return
	case <-time.After(grace):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.mu.servers {
		s.signal(syscall.SIGKILL)
	}
}

// say reports progress to the user; figures go to the report.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
