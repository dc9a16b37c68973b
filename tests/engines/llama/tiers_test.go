package llama

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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

// wantMiss fails t unless err says that the engine found no state, and lived.
func wantMiss(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*RefusedError](err); !ok {
		t.Errorf("restore: got %v, want a *RefusedError", err)
	}
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

// TestDiskCut shows that a crash in the midst of saving over a state, or right after
// it, with what was in memory lost, leaves the new state, the old one, or none: the
// engine never sees a part, which would abort it.
func TestDiskCut(t *testing.T) {
	long(t)
	harness.KvfsOnly(t, "no tiers")
	e := prepare(t)
	older, newer := e.WithPrompt(23, 200), e.WithPrompt(24, 800).WithTransposedValues()
	for _, c := range []struct {
		name string
		when uint32
	}{{"at the first write", unix.IN_MODIFY}, {"at close", unix.IN_CLOSE_WRITE}} {
		t.Run(c.name, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{Disk: "64MiB"})
			dir := slots(t, d)
			old := older.Save(t, dir, slot)
			stored(t, d, 1)
			happened := watch(t, dir, c.when)
			p, err := newer.Start(t.Context(), "save", filepath.Join(dir, slot))
			must(t, err)
			happened()
			d.Kill()
			saved, err := p.Wait()
			if err != nil {
				t.Logf("the engine: %v", err)
			}
			d.DropMemory()
			d.Restart()
			checkOneOf(t, newer, older, d.Path("llama.cpp"), saved, old)
		})
	}
}

// checkOneOf restores the slot of a directory, and fails t unless it is the newer
// state, the older one, or a miss.
func checkOneOf(t *testing.T, newer, older *Engine, dir string, saved, old Continuation) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, slot))
	switch {
	case errors.Is(err, os.ErrNotExist):
		_, err := newer.TryRestore(t.Context(), dir, slot)
		wantMiss(t, err)
		t.Log("no state is left")
	case err != nil:
		t.Error(err)
	case info.Size() == old.Bytes:
		if diff := Diff(older.Restore(t, dir, slot), old); diff != "" {
			t.Errorf("restored process differs: %s", diff)
		}
		t.Log("the older state is left")
	default:
		if diff := Diff(newer.Restore(t, dir, slot), saved); diff != "" {
			t.Errorf("restored process differs: %s", diff)
		}
		t.Log("the newer state is left")
	}
}

// TestDiskDamaged shows that a state whose bytes on the SSD have changed is a miss to
// the engine, and is saved and restored again afterwards.
func TestDiskDamaged(t *testing.T) {
	long(t)
	harness.KvfsOnly(t, "no tiers")
	e := prepare(t)
	d := harness.Mount(t, harness.Options{Disk: "64MiB"})
	saved := e.Save(t, slots(t, d), slot)
	state := read(t, d.Path("llama.cpp", slot))
	d.Stop()
	d.DropMemory()
	damage(t, d.DiskDir, state)
	d.Restart()
	_, err := e.TryRestore(t.Context(), slots(t, d), slot)
	wantMiss(t, err)
	if n := d.Status().Secondary(t, "disk").Corrupt; n == 0 {
		t.Error("no block was found corrupt; the test shows nothing")
	}
	again := e.Save(t, slots(t, d), slot)
	if diff := Diff(again, saved); diff != "" {
		t.Fatalf("the same prompt continues otherwise: %s", diff)
	}
	if diff := Diff(e.Restore(t, d.Path("llama.cpp"), slot), saved); diff != "" {
		t.Errorf("restored process differs: %s", diff)
	}
}

// read returns the bytes of a file.
func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return text
}

// damage changes one bit of a state in the files of a directory.
func damage(t *testing.T, dir string, state []byte) {
	t.Helper()
	piece := state[len(state)/2:][:64]
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found int
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		text := read(t, path)
		if at := bytes.Index(text, piece); at >= 0 {
			found++
			flip(t, path, int64(at), text[at])
		}
	}
	if found != 1 {
		t.Fatalf("%d files have the state, want 1", found)
	}
}

// flip changes the lowest bit of a byte.
func flip(t *testing.T, path string, at int64, old byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{old ^ 1}, at); err != nil {
		t.Fatal(err)
	}
}
