package llmd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{"fs": start}))
}

// TestSpill runs 64 threads over ten times the size of memory. A file that was looked up must be there when it is
// loaded, because the engine would take the old content of its buffer for the file. The first file of each
// conversation is smaller.
func TestSpill(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "64MiB", Disk: "2GiB"}, shared)
	c := replay.Chat{
		Seed: replay.Seed(t), Conversations: replay.Scale(64), Turns: 3, Concurrent: 64, TurnBlocks: 2, BlockBytes: 1 << 20, HeadBytes: 384 << 10,
	}
	replay.Life{Engine: "fs", Dir: shared, Processes: 1, Chat: c}.Run(t, d)
	replay.Template(t, d, "llm-d.md", Template, c.Prompt(11, 2))
}

func one(t *testing.T, opts harness.Options, blocks int) (*harness.Daemon, *backend, []replay.Block, []byte) {
	t.Helper()
	d := harness.Mount(t, opts)
	workers, err := start(d.Path(shared))
	must(t, err)
	c := replay.Chat{Seed: replay.Seed(t), Turns: 1, TurnBlocks: blocks, BlockBytes: 1 << 20}
	return d, workers(0).(*backend), c.Prompt(0, 0), replay.Buffer(c.BlockBytes)
}

// TestTail reads the ends of files, from memory and from SSD.
func TestTail(t *testing.T) {
	harness.KvfsOnly(t, "an SSD tier")
	d, e, blocks, p := one(t, harness.Options{Disk: "1GiB"}, 8)
	for _, b := range blocks {
		replay.Fill(p, b.Name())
		must(t, e.Store(b, p))
	}
	for range 2 {
		for _, b := range blocks {
			replay.Fill(p, b.Name())
			for _, n := range []int{1 << 20, 512 << 10, 64 << 10, 1000} {
				tail := make([]byte, n)
				must(t, e.loadTail(b, tail))
				if !bytes.Equal(tail, p[len(p)-n:]) {
					t.Errorf("%s: the last %d bytes are wrong", b.Name(), n)
				}
			}
		}
		if err := e.loadTail(blocks[0], make([]byte, 2<<20)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("more than there is: %v, want %v", err, io.ErrUnexpectedEOF)
		}
		replay.Settle(t, d)
		replay.Evict(t, d)
	}
}

// TestEvictor runs the evictor of llm-d beside a full cache. The evictor has nothing to do, because blocks that kvfs
// would evict count as free. If it is made to crawl, it removes idle files, but none that was read or that a store
// touched.
func TestEvictor(t *testing.T) {
	harness.KvfsOnly(t, "statfs of a cache")
	d, e, blocks, p := one(t, harness.Options{MemorySize: "32MiB", Disk: "64MiB"}, 160)
	for _, b := range blocks {
		replay.Fill(p, b.Name())
		must(t, e.Store(b, p))
	}
	replay.Settle(t, d)
	ev := &evictor{dir: e.root, start: 0.85, idle: time.Hour}
	used, err := ev.fill()
	must(t, err)
	if n, err := ev.run(time.Now()); n != 0 || err != nil {
		t.Errorf("a full cache looks %.0f %% full, and %d files went, %v; want none", 100*used, n, err)
	}

	var there []replay.Block
	old := []unix.Timespec{{Sec: 1000}, {Nsec: unix.UTIME_OMIT}}
	for _, b := range blocks {
		if e.Lookup(b) {
			there = append(there, b)
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, e.path(b), old, 0))
		}
	}
	if len(there) < 16 || len(there) == len(blocks) {
		t.Fatalf("%d of %d files are there", len(there), len(blocks))
	}
	must(t, e.Load(there[0], p))
	must(t, e.Store(there[1], p))
	n, err := ev.crawl(time.Now())
	must(t, err)
	if n == 0 || n > len(there)-2 || !e.Lookup(there[0]) || !e.Lookup(there[1]) {
		t.Errorf("%d of %d files went; the one that was read is there: %v, the one that was touched: %v",
			n, len(there), e.Lookup(there[0]), e.Lookup(there[1]))
	}
	if _, err := replay.Stat(filepath.Dir(e.path(there[2]))); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the directory of a file that went: %v, want ENOENT", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
