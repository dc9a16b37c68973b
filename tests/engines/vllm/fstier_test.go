package vllm

import (
	"os"
	"testing"

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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
