package sglang

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{"file": start(false), "hybrid": start(true)}))
}

// TestSpill has two instances share the directory, with one thread each for
// look-ups, loads and stores.
func TestSpill(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB"}, storage)
	c := replay.Chat{
		Seed: replay.Seed(t), Conversations: replay.Scale(40), Turns: 3, Concurrent: 8, TurnBlocks: 2, SharedBlocks: 2, BlockBytes: 512 << 10,
	}
	replay.Life{Engine: "file", Dir: storage, Processes: 2, Chat: c}.Run(t, d)
	replay.Template(t, d, "sglang.md", Template, c.Prompt(3, 2))
}

// TestHybrid looks up by scanning the directory, for a model with two pools.
func TestHybrid(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB"}, storage)
	replay.Life{
		// A scan grants no lease, so pages may be gone when they are loaded.
		Engine: "hybrid", Dir: storage, Processes: 1, Gone: true,
		Chat: replay.Chat{
			Seed: replay.Seed(t), Conversations: replay.Scale(60), Turns: 3, Concurrent: 8, TurnBlocks: 2, BlockBytes: 128 << 10, Groups: 2,
		},
	}.Run(t, d)
}

// TestLargePages has pages for which numpy reserves room first.
func TestLargePages(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "64MiB", Disk: "1GiB"}, storage)
	replay.Life{
		Engine: "file", Dir: storage, Processes: 1,
		Chat: replay.Chat{
			Seed: replay.Seed(t), Conversations: replay.Scale(8), Turns: 2, Concurrent: 1, TurnBlocks: 1, BlockBytes: fallocateFrom + 4096,
		},
	}.Run(t, d)
}

// TestMemoryOnly has no SSD and no leases: pages go for good, and the prefetch
// thread survives, because a page that is gone is ENOENT.
func TestMemoryOnly(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Flags: []string{
		"--mount-lookup-lease", "0", "--mount-entry-timeout", "0", "--mount-attr-timeout", "0",
	}}, storage)
	for _, engine := range []string{"file", "hybrid"} {
		c := replay.Chat{
			Seed: replay.Seed(t), Conversations: 40, Turns: 3, Concurrent: 8, TurnBlocks: 2, BlockBytes: 512 << 10,
		}
		tally := replay.Start(t, engine, d.Path(storage)).Run(c)
		tally.Want(t, engine, true)
		if tally.Stored <= c.Blocks() {
			t.Errorf("%s: stored %d of %d blocks; want some to be evicted and stored again", engine, tally.Stored, c.Blocks())
		}
	}
	if _, c := replay.Figures(t, d); c.Evicted == 0 || c.Poisoned > 0 {
		t.Errorf("evicted %d, poisoned %d", c.Evicted, c.Poisoned)
	}
}

// TestEvictor runs the engine's own evictor over a directory that is larger than
// memory, and starts it again after a restart of the daemon: it finds the files
// in the order in which they were stored.
func TestEvictor(t *testing.T) {
	harness.KvfsOnly(t, "restarts")
	d := harness.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB"})
	workers, err := start(false)(d.Path(storage))
	must(t, err)
	q := workers(0).(*request)
	ev, err := startEvictor(q.dir, 64<<20)
	must(t, err)
	c := replay.Chat{Seed: replay.Seed(t), Turns: 1, TurnBlocks: 400, BlockBytes: 256 << 10}
	p := replay.Buffer(c.BlockBytes)
	blocks := c.Prompt(0, 0)
	removed := map[string]bool{}
	for _, b := range blocks {
		gone, err := ev.makeRoom(int64(b.Size))
		must(t, err)
		for _, n := range gone {
			removed[n] = true
		}
		replay.Fill(p, b.Name())
		must(t, q.Store(b, p))
		ev.add(name(b), int64(b.Size))
	}
	for _, b := range blocks {
		err := q.Load(b, p)
		switch {
		case removed[name(b)] != errors.Is(err, replay.ErrMiss):
			t.Errorf("%s: %v; removed: %v", name(b), err, removed[name(b)])
		case err == nil:
			must(t, replay.Check(p, b.Name()))
		}
	}
	want := slices.Clone(ev.order)
	replay.Settle(t, d)
	d.Restart()
	again, err := startEvictor(q.dir, 64<<20)
	must(t, err)
	if !slices.Equal(again.order, want) || again.total != ev.total {
		t.Errorf("after a restart: %d files of %d bytes, want the same %d of %d in the same order",
			len(again.order), again.total, len(want), ev.total)
	}
	removeAll(t, q.dir)
}

// removeAll is clear() of the back-end.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	names, err := replay.Scan(dir)
	must(t, err)
	for _, n := range names {
		must(t, replay.Unlink(dir+"/"+n))
	}
	if names, err := replay.Scan(dir); err != nil || len(names) != 0 {
		t.Errorf("after clear: %d files, %v", len(names), err)
	}
}

// TestFailures shows what the prefetch thread dies of, a file that is too short,
// and that a store which fails leaves nothing.
func TestFailures(t *testing.T) {
	harness.KvfsOnly(t, "quotas")
	d := harness.Mount(t, harness.Options{Config: "groups: {sglang: {pinned: true, quota: 2MiB}}"})
	workers, err := start(false)(d.Path(storage))
	must(t, err)
	q := workers(0).(*request)
	c := replay.Chat{Seed: replay.Seed(t), Turns: 1, TurnBlocks: 9, BlockBytes: 256 << 10}
	blocks := c.Prompt(0, 0)
	p := replay.Buffer(c.BlockBytes)
	for _, b := range blocks[:7] {
		replay.Fill(p, b.Name())
		must(t, q.Store(b, p))
	}
	must(t, q.Store(blocks[7], p[:100]))
	if err := q.Store(blocks[8], p); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("store beyond the quota: %v, want ENOSPC", err)
	}
	if names, err := replay.Scan(q.dir); err != nil || len(names) != 8 {
		t.Errorf("%d files, %v; want 8 and no temporary one", len(names), err)
	}
	if err := q.Load(blocks[8], p); !errors.Is(err, replay.ErrMiss) || q.dead {
		t.Errorf("load of what is not there: %v, thread dead: %v; want a miss", err, q.dead)
	}
	if err := q.Load(blocks[7], p); err == nil || !q.dead {
		t.Errorf("load of a short file: %v, thread dead: %v; want it to die", err, q.dead)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMisses shows that the stat(2) before a store is no miss, and the one before a computation is.
func TestMisses(t *testing.T) {
	replay.Misses(t, replay.Mount(t, harness.Options{}, storage), start(false), storage)
}
