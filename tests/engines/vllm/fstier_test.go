package vllm

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{"fs": startFS}))
}

const blockBytes = 256 << 10

// TestSpill is the shape of E20: 100 conversations of 3 turns, 32 at a time on
// 32 threads, over a memory tier that holds a tenth of it.
func TestSpill(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB"}, rootAt)
	c := replay.Chat{
		Seed: replay.Seed(t), Conversations: replay.Scale(100), Turns: 3, Concurrent: 32, TurnBlocks: 4, BlockBytes: blockBytes,
	}
	replay.Life{Engine: "fs", Dir: rootAt, Processes: 1, Chat: c}.Run(t, d)
	replay.Template(t, d, "vllm.md", Template, c.Prompt(7, 2))
}

// TestTwoEngines has two processes share the tree of a model with two groups of
// layers, and so each other's blocks: they store the same names at the same time.
func TestTwoEngines(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB"}, rootAt)
	replay.Life{
		Engine: "fs", Dir: rootAt, Processes: 2,
		Chat: replay.Chat{
			Seed: replay.Seed(t), Conversations: replay.Scale(32), Turns: 3, Concurrent: 16, TurnBlocks: 2, SharedBlocks: 4,
			BlockBytes: blockBytes, Groups: 2,
		},
	}.Run(t, d)
}

// one returns a worker of the tier on a mount of its own, and some blocks.
func one(t *testing.T, opts harness.Options) (*fsTier, []replay.Block) {
	t.Helper()
	d := harness.Mount(t, opts)
	workers, err := startFS(d.Path(rootAt))
	if err != nil {
		t.Fatal(err)
	}
	c := replay.Chat{Seed: replay.Seed(t), Conversations: 1, Turns: 1, TurnBlocks: 64, BlockBytes: blockBytes}
	return workers(0).(*fsTier), c.Prompt(0, 0)
}

func content(b replay.Block) []byte {
	p := replay.Buffer(b.Size)
	replay.Fill(p, b.Name())
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestStart shows that the probe of O_DIRECT succeeds and leaves nothing behind,
// and that a second start finds config.json.
func TestStart(t *testing.T) {
	e, _ := one(t, harness.Options{})
	if e.direct == 0 {
		t.Error("the probe failed: buffered I/O for the whole run")
	}
	if _, err := startFS(e.root); err != nil {
		t.Errorf("second start: %v", err)
	}
	names, err := replay.Scan(filepath.Join(e.root, model))
	if err != nil || len(names) != 1 || names[0] != "config.json" {
		t.Errorf("after two starts: %q, %v; want config.json", names, err)
	}
}

// TestShortFile has a file under a block's name that is too short: the engine
// removes it, computes the block and stores it.
func TestShortFile(t *testing.T) {
	e, blocks := one(t, harness.Options{})
	b := blocks[0]
	must(t, e.Store(b, content(b)[:blockBytes/2]))
	p := replay.Buffer(blockBytes)
	if err := e.Load(b, p); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("load of half a block: %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if e.Lookup(b) {
		t.Error("half a block is still there")
	}
	must(t, e.Store(b, content(b)))
	must(t, e.Load(b, p))
	must(t, replay.Check(p, b.Name()))
}

// TestTempExists has the temporary file of the thread be there already: the
// store fails, and cleans up as it does after any failure, so that the next one
// succeeds.
func TestTempExists(t *testing.T) {
	e, blocks := one(t, harness.Options{})
	b := blocks[0]
	must(t, e.Store(b, content(b)))
	must(t, replay.Unlink(e.path(b)))
	must(t, e.write(e.temp(e.path(b)), content(b)))
	if err := e.Store(b, content(b)); !errors.Is(err, unix.EEXIST) {
		t.Errorf("store over a temporary file: %v, want EEXIST", err)
	}
	must(t, e.Store(b, content(b)))
	must(t, e.Load(b, replay.Buffer(blockBytes)))
}

// TestNoSpace stores into a pinned group until its quota is used up. The block that does not fit fails whole and
// leaves nothing behind, and the stored blocks are untouched. After a removal there is room at once.
func TestNoSpace(t *testing.T) {
	harness.KvfsOnly(t, "quotas")
	e, blocks := one(t, harness.Options{Config: "groups: {vllm: {pinned: true, quota: 4MiB}}"})
	stored, err := 0, error(nil)
	for err == nil && stored < len(blocks) {
		if err = e.Store(blocks[stored], content(blocks[stored])); err == nil {
			stored++
		}
	}
	if !errors.Is(err, unix.ENOSPC) || stored == 0 {
		t.Fatalf("after %d blocks: %v, want ENOSPC", stored, err)
	}
	failed := blocks[stored]
	names, _ := replay.Scan(filepath.Dir(e.path(failed)))
	if len(names) != 0 || e.Lookup(failed) {
		t.Errorf("left of the block that did not fit: %q", names)
	}
	must(t, replay.Unlink(e.path(blocks[0])))
	must(t, e.Store(failed, content(failed)))
	p := replay.Buffer(blockBytes)
	for _, b := range blocks[1 : stored+1] {
		must(t, e.Load(b, p))
		must(t, replay.Check(p, b.Name()))
	}
}
