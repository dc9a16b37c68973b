package lmcache

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{
		"fs":     startFS(""),
		"fs-tmp": startFS("tmp"),
	}))
}

// TestTwoEngines has two processes store and load the same chunks by FSConnector,
// with the same temporary names.
func TestTwoEngines(t *testing.T) {
	for _, engine := range []string{"fs", "fs-tmp"} {
		t.Run(engine, func(t *testing.T) {
			d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB", Flags: keep(engine == "fs-tmp")}, remote)
			c := replay.Chat{
				Seed: replay.Seed(t), Conversations: replay.Scale(32), Turns: 3, Concurrent: 8, TurnBlocks: 2, SharedBlocks: 2, BlockBytes: 512 << 10,
			}
			replay.Life{Engine: engine, Dir: remote, Processes: 2, Chat: c}.Run(t, d)
			names, err := filepath.Glob(d.Path(remote, "*.data"))
			if err != nil || len(names) < c.Blocks() {
				t.Errorf("glob *.data: %d names, %v; want at least %d", len(names), err, c.Blocks())
			}
			prompt := c.Prompt(5, 2)
			for i := range prompt {
				prompt[i].Hash = prompt[i].Hash[:16]
			}
			replay.Template(t, d, "lmcache.md", Template, prompt)
		})
	}
}

// keep returns the flags of a daemon whose engines have made a directory for
// temporary files at their start, and never will again: without memory.keep an
// empty directory is gone after a clean stop.
func keep(tmpDir bool) []string {
	if tmpDir {
		return []string{"--memory-keep"}
	}
	return nil
}
