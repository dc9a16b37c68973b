package cluster

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestLocationMemory shows what a node does that has no memory to know all blocks of its peer: it says so, the blocks
// without room are misses, and the others come with the right bytes.
func TestLocationMemory(t *testing.T) {
	const blocks = 9000
	w := newWorld(t, harness.ClusterOptions{
		Nodes: 2, Options: harness.Options{MemorySize: "128MiB"}, PeerTimeout: patient,
		Flags: func(node int) []string { return []string{"--peer-location-memory", []string{"1GiB", "200KiB"}[node]} },
	})
	a, b := w.Nodes[0], w.Nodes[1]
	for i := range blocks {
		w.writeSmall(a, i)
	}
	index := func() (entries, omitted float64) {
		at := b.Status().Raw["cluster"].(map[string]any)["node"].(map[string]any)["index"].(map[string]any)
		return at["entries"].(float64), at["omitted_entries"].(float64)
	}
	harness.Poll(t, "all blocks are known or counted", func() bool {
		entries, omitted := index()
		return entries+omitted >= blocks
	})
	entries, omitted := index()
	t.Logf("%v entries, %v without room", entries, omitted)
	if omitted == 0 || entries < blocks/2 {
		t.Errorf("%v entries, %v without room, of %d blocks", entries, omitted, blocks)
	}
	found := 0
	for i := range blocks {
		_, err := os.Lstat(b.Path(smallName(i)))
		switch {
		case err == nil:
			found++
		case !errors.Is(err, unix.ENOENT):
			t.Fatalf("stat: got %v, want ENOENT", err)
		}
		if err != nil || found%100 != 0 {
			continue
		}
		if got, err := os.ReadFile(b.Path(smallName(i))); err != nil || string(got) != smallName(i) {
			t.Fatalf("read of a block that is known: %q, %v", got, err)
		}
	}
	if found < blocks/2 || found == blocks {
		t.Errorf("found %d of %d blocks", found, blocks)
	}
}
