package control

import (
	"bytes"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestStatusDocument shows that the status of nodes with memory, SSD, peers and events has the fields of its schema
// alone, whatever the names of blocks and groups are, and that the names of groups come out escaped.
func TestStatusDocument(t *testing.T) {
	_, a, b := newPair(t, harness.ClusterOptions{Options: harness.Options{
		Disk: "128MiB", Flags: []string{"--zone", "rack-1", "--events-zmq-bind", "tcp://127.0.0.1:0"},
	}})
	names := map[string]string{ // each with its escaped form
		"g<b>&\x1b[2J": `g<b>&\x1b[2J`, "g\xff": `g\xff`, "g\u009b31m\u202e": `g\u009b31m\u202e`, `g"\n`: `g"\\n`,
	}
	for name := range names {
		key := name + "/odd\x07</b>\xfe"
		must(t, "mkdir", os.Mkdir(a.Path(name), 0o755))
		store(t, a.Path(key), pattern(key, 4*kib))
		waitOnDisk(t, a.Path(key))
		harness.Poll(t, "the block is known to the other node", func() bool {
			_, err := os.Stat(b.Path(key))
			return err == nil
		})
		wantBytes(t, b.Path(key), pattern(key, 4*kib))
	}
	for _, d := range []*harness.Daemon{a.Daemon, b.Daemon} {
		text, err := os.ReadFile(d.Path(".kvfs", "status"))
		must(t, "status", err)
		harness.CheckStatus(t, text)
		if i := bytes.IndexAny(text, "<>&"); i >= 0 {
			t.Errorf("markup: %q", text[i:min(i+9, len(text))])
		}
		s := harness.StatusOf(t, d.Dir)
		groups := map[string]bool{}
		all, _ := s.Raw["groups"].([]any)
		for _, g := range all {
			name, _ := g.(map[string]any)["name"].(string)
			groups[name] = true
		}
		for _, form := range names {
			if !groups[form] {
				t.Errorf("no group %s in %v", form, groups)
			}
		}
		for _, part := range []string{"cluster", "events", "secondaries", "counters", "reads"} {
			if s.Raw[part] == nil {
				t.Errorf("no %s in %s", part, text)
			}
		}
		if s.Schema != 2 || len(s.Tiers) != 3 || s.Tiers[0].Blocks == 0 {
			t.Errorf("got %+v", s)
		}
	}
}
