package llama

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestStore shows that mounts of one owner have one set of states: another process restores through one mount a state
// that was saved through the other. It stays so after the owner was killed, or stopped for an upgrade, and started
// again while the mounts live, with its memory or with the SSD alone (B1, E22).
func TestStore(t *testing.T) {
	e := prepare(t)
	o := harness.Serve(t, harness.Options{Disk: "64MiB", Flags: []string{"--memory-keep"}})
	a, b := o.Attach(), o.Attach()
	saved := e.Save(t, slots(t, a), slot)
	restore := func(t *testing.T) {
		t.Helper()
		if diff := Diff(e.Restore(t, b.Path("llama.cpp"), slot), saved); diff != "" {
			t.Errorf("restored process differs: %s", diff)
		}
	}
	restore(t)
	stored(t, b, 1)
	for _, c := range []struct {
		name     string
		end      func()
		promoted uint64
	}{
		{"killed", func() { o.Kill() }, 0},
		{"stopped", func() { o.Stop() }, 0},
		{"killed and memory lost", func() { o.Kill(); o.DropMemory() }, 1},
		{"stopped and memory lost", func() { o.Stop(); o.DropMemory() }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.end()
			o.Restart()
			restore(t)
			if n := b.Status().Secondary(t, "disk").Promoted; n != c.promoted {
				t.Errorf("%d blocks came from the SSD, want %d", n, c.promoted)
			}
		})
	}
	// Saved anew through the other mount, over the old state.
	later := e.WithPrompt(31, 300)
	saved = later.Save(t, b.Path("llama.cpp"), slot)
	if diff := Diff(e.Restore(t, a.Path("llama.cpp"), slot), saved); diff != "" {
		t.Errorf("restored process differs: %s", diff)
	}
}
