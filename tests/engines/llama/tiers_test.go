package llama

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

const slot = "slot.bin"

// slots makes the directory of the slots on a mount, and returns it.
func slots(t *testing.T, d *harness.Daemon) string {
	t.Helper()
	dir := d.Path("llama.cpp")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// stored waits until a mount has this number of blocks on its SSD, and no copy under way.
func stored(t *testing.T, d *harness.Daemon, blocks int64) {
	t.Helper()
	harness.Poll(t, "the state is on the SSD", func() bool {
		s := d.Status().Secondary(t, "disk")
		return s.Blocks >= blocks && s.QueuedBlocks == 0
	})
}

// evict runs kvfs evict and returns its output.
func evict(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := harness.Kvfs(t, append([]string{"evict"}, args...)...)
	if code != 0 {
		t.Fatalf("kvfs evict %q: exit code %d\n%s", args, code, stderr)
	}
	return stdout
}

// TestDisk shows that a state comes back from the SSD, to the last bit, when memory
// has lost it: by a clean stop, by a crash, or by eviction.
func TestDisk(t *testing.T) {
	harness.KvfsOnly(t, "no tiers")
	e := prepare(t).WithPrompt(21, 400)
	for _, c := range []struct {
		name string
		lose func(*testing.T, *harness.Daemon)
	}{
		{"stopped", func(t *testing.T, d *harness.Daemon) {
			if code := d.Stop(); code != 0 {
				t.Errorf("exit code %d of the daemon", code)
			}
			d.DropMemory()
			d.Restart()
		}},
		{"killed", func(t *testing.T, d *harness.Daemon) {
			stored(t, d, 1)
			d.Kill()
			d.DropMemory()
			d.Restart()
		}},
		{"evicted", func(t *testing.T, d *harness.Daemon) {
			stored(t, d, 1)
			evict(t, "--tier", "memory", d.Path("llama.cpp", slot))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{Disk: "64MiB"})
			saved := e.Save(t, slots(t, d), slot)
			c.lose(t, d)
			before := d.Status()
			if blocks := before.Tier(t, "memory").Blocks; blocks != 0 {
				t.Fatalf("memory holds %d blocks; the test shows nothing", blocks)
			}
			checkSize(t, d.Path("llama.cpp", slot), saved.Bytes)
			if diff := Diff(e.Restore(t, d.Path("llama.cpp"), slot), saved); diff != "" {
				t.Errorf("restored process differs: %s", diff)
			}
			after := d.Status().Secondary(t, "disk")
			if n := after.PromotedBytes - before.Secondary(t, "disk").PromotedBytes; n != uint64(saved.Bytes) {
				t.Errorf("%d bytes came from the SSD, want %d", n, saved.Bytes)
			}
		})
	}
}
