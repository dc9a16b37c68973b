package vllm

import (
	"os"
	"testing"
	"time"

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

// BenchmarkSpill measures the shape of E20, with -benchtime 1x: 100 conversations of 3 turns, 32 at a time on 32
// threads, in blocks of 1 MiB, over a memory tier that holds a tenth of the 2.3 GiB. All has to be right.
func BenchmarkSpill(b *testing.B) {
	for b.Loop() {
		d := replay.Mount(b, harness.Options{MemorySize: "256MiB", Disk: "4GiB"}, rootAt)
		c := replay.Chat{Seed: replay.Seed(b), Conversations: 100, Turns: 3, Concurrent: 32, TurnBlocks: 8, BlockBytes: 1 << 20}
		engine := replay.Start(b, "fs", d.Path(rootAt))
		began := time.Now()
		tally := engine.Run(c)
		took := time.Since(began).Seconds()
		tally.Want(b, "spill", false)
		s, _ := replay.Figures(b, d)
		if s.Failed > 0 || s.DiskHits == 0 {
			b.Errorf("%d failed blocks, %d from disk", s.Failed, s.DiskHits)
		}
		b.ReportMetric(float64(tally.LoadedBytes)/took/1e6, "MB-loaded/s")
		b.ReportMetric(float64(tally.StoredBytes)/took/1e6, "MB-stored/s")
		b.ReportMetric(float64(s.BytesByTier["disk"])/1e9, "GB-from-disk")
		b.ReportMetric(float64(s.Failed), "failed-keys")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMisses shows that the access(2) before a store is no miss, and the one before a computation is.
func TestMisses(t *testing.T) {
	replay.Misses(t, replay.Mount(t, harness.Options{}, rootAt), startFS, rootAt)
}
