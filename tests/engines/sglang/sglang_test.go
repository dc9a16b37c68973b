package sglang

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{"file": start}))
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
