package llmd

import (
	"os"
	"testing"

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
