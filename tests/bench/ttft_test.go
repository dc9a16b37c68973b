package main

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

// The topic runs from start to end with a small model: the engine goes on from the state of each source as from the
// one that it computed, and the state was where it was to be.
func TestTTFTTopic(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: make bench-quick runs the topic")
	}
	b, out := runTopic(t, "ttft")
	if table := b.report.tables["ttft"][0]; table.title != "Time to first token" {
		t.Skip(table.rows[0][0])
	}
	for _, name := range []string{ttftComputed, ttftShm, ttftMemory, ttftDisk, ttftPeer} {
		if name == ttftPeer && netns.Lacks() != "" {
			continue
		}
		if rows := rowsOf(t, b, "ttft", name); len(rows) != 1 || rows[0].Value <= 0 || rows[0].BlockBytes == 0 {
			t.Errorf("%s: %+v", name, rows)
		}
	}
	mustContain(t, out, "| memory of kvfs", "| SSD of kvfs")
}
