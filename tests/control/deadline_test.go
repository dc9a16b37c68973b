package control

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// counter returns one of the engine's counters.
func counter(t testing.TB, d *harness.Daemon, name string) int {
	t.Helper()
	counters, _ := d.Status().Raw["counters"].(map[string]any)
	n, ok := counters[name].(float64)
	if !ok {
		t.Fatalf("status has no counter %s: %v", name, counters)
	}
	return int(n)
}

// TestOpenDeadline holds the device up. An open gives up after the deadline, later opens give up at once, and both
// are counted. The block stays on disk, and why gives the reason. Once the device is well, the open works.
func TestOpenDeadline(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{Flags: []string{"--promotion-open-deadline", "200ms"}})
	coldBlocks(t, d, mib, "g/a", "g/b", "g/c")
	c := talk(t, d, "query")
	g.Hold()
	within(t, "the open gives up", func() { wantMiss(t, d.Path("g/a")) })
	if got := counter(t, d, "deadline_exceeded_misses"); got != 1 {
		t.Errorf("deadline_exceeded_misses: got %d, want 1", got)
	}
	wantStates(t, c, "w", "g/a") // It is still on its way.
	harness.Poll(t, "the device counts as late", func() bool { return c.states("g/b") == "l" })
	before := counter(t, d, "deadline_predicted_misses")
	within(t, "the open of another one gives up", func() { wantMiss(t, d.Path("g/b")) })
	if got := counter(t, d, "deadline_predicted_misses"); got != before+1 {
		t.Errorf("deadline_predicted_misses: got %d, want %d", got, before+1)
	}
	if got := c.why("g/b")[0]; got.Verdict != "deadline" {
		t.Errorf("why: got %+v, want deadline", got)
	}
	g.Release()
	for _, key := range []string{"g/a", "g/b", "g/c"} {
		harness.Poll(t, key+" can be read", func() bool {
			b, err := readBlock(d.Path(key))
			return err == nil && string(b) == string(pattern(key, mib))
		})
		if got := tierOf(d.Path(key)); got != "memory,disk" {
			t.Errorf("%s: in %q, want it in memory and on disk", key, got)
		}
		if got := c.why(key)[0]; got.Verdict != "present" {
			t.Errorf("why %s: got %+v, want present", key, got)
		}
	}
	if s := d.Status().Secondary(t, "disk"); s.Corrupt+s.IOErrors+s.PromoteCorrupt+s.PromoteAbsent != 0 {
		t.Errorf("a slow device was taken for a bad one: %+v", s)
	}
}
