package llama

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestLostWhileRestoring shows that an engine which has opened a state gets all of it,
// whatever becomes of its name and of the block meanwhile.
func TestLostWhileRestoring(t *testing.T) {
	long(t)
	harness.KvfsOnly(t, "no eviction")
	e := prepare(t)
	d := harness.Mount(t, harness.Options{})
	dir, path := slots(t, d), d.Path("llama.cpp", slot)
	saved := e.Save(t, dir, slot)
	state := read(t, path)
	const none = -1
	for _, c := range []struct {
		name string
		lose func(*testing.T) (left int64) // bytes at the name afterwards
	}{
		{"removed", func(t *testing.T) int64 {
			must(t, os.Remove(path))
			return none
		}},
		{"removed and evicted", func(t *testing.T) int64 {
			must(t, os.Remove(path))
			evict(t, "--tier", "memory", "--force", "--all", d.Dir)
			return none
		}},
		{"evicted", func(t *testing.T) int64 { // It stays, as it is open.
			if said := evict(t, "--tier", "memory", "--force", path); !strings.Contains(said, "open") {
				t.Errorf("kvfs evict: %s", said)
			}
			return saved.Bytes
		}},
		{"saved over", func(t *testing.T) int64 { return e.WithPrompt(51, 100).Save(t, dir, slot).Bytes }},
		{"emptied", func(t *testing.T) int64 {
			must(t, os.WriteFile(path, nil, 0o644))
			return 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, os.WriteFile(path, state, 0o644))
			h := holdReads(t, path)
			p, err := e.Start(t.Context(), "restore", path)
			must(t, err)
			h.wait()
			left := c.lose(t)
			h.release()
			restored, err := p.Wait()
			must(t, err)
			if diff := Diff(restored, saved); diff != "" {
				t.Errorf("restored process differs: %s", diff)
			}
			if left != none {
				checkSize(t, path, left)
			} else if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("stat: %v", err)
			}
		})
	}
}

// TestDaemonKilledWhileRestoring shows that an engine which is reading a state when the
// daemon is killed gets all of it, where the kernel reads by itself.
func TestDaemonKilledWhileRestoring(t *testing.T) {
	harness.KvfsOnly(t, "no daemon")
	e := prepare(t)
	d := harness.Mount(t, harness.Options{})
	if path := d.Status().Mount.ReadPath; path != "passthrough" {
		harness.Skip(t, "read path %s", path)
	}
	saved := e.Save(t, slots(t, d), slot)
	h := holdReads(t, d.Path("llama.cpp", slot))
	p, err := e.Start(t.Context(), "restore", d.Path("llama.cpp", slot))
	must(t, err)
	h.wait()
	d.Kill()
	h.release()
	restored, err := p.Wait()
	must(t, err)
	if diff := Diff(restored, saved); diff != "" {
		t.Errorf("restored process differs: %s", diff)
	}
}

// slow are options of a mount on which saving takes long: each write goes through the
// daemon.
var slow = harness.Options{Flags: []string{"--memory-passthrough", "off"}}

// midway starts a process that saves over a state in the slot of a directory, and stops
// it in the midst of its writes. It does so again if the process was faster.
func midway(t *testing.T, dir string, old, e *Engine) *Process {
	t.Helper()
	const attempts = 20
	path := filepath.Join(dir, slot)
	for range attempts {
		old.Save(t, dir, slot)
		written := watch(t, dir, unix.IN_MODIFY)
		p, err := e.Start(t.Context(), "save", path)
		must(t, err)
		written()
		harness.Freeze(t, p.Pid)
		if at, open := position(p.Pid, path); open {
			t.Logf("stopped at byte %d", at)
			return p
		}
		thaw(t, p.Pid)
		if _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("%d processes wrote all before they could be stopped", attempts)
	return nil
}

// TestEvictWhileSaving shows that eviction does not touch a state that is being
// written, and takes what is not in use meanwhile.
func TestEvictWhileSaving(t *testing.T) {
	long(t)
	harness.KvfsOnly(t, "no eviction")
	e := prepare(t)
	d := harness.Mount(t, slow)
	dir, path := slots(t, d), d.Path("llama.cpp", slot)
	// Transposed values are many writes.
	writer := e.WithPrompt(61, 960).WithTransposedValues()
	p := midway(t, dir, e, writer)
	evict(t, "--tier", "memory", "--force", "--all", d.Dir)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old state is gone, and the new one is not yet whole: %v", err)
	}
	thaw(t, p.Pid)
	saved, err := p.Wait()
	must(t, err)
	checkSize(t, path, saved.Bytes)
	if diff := Diff(writer.Restore(t, dir, slot), saved); diff != "" {
		t.Errorf("restored process differs: %s", diff)
	}
}

// TestKilledWhileSaving shows that an engine which is killed in the midst of saving
// over a state leaves none.
func TestKilledWhileSaving(t *testing.T) {
	long(t)
	harness.KvfsOnly(t, "POSIX would leave a part")
	e := prepare(t)
	d := harness.Mount(t, slow)
	dir, path := slots(t, d), d.Path("llama.cpp", slot)
	p := midway(t, dir, e, e.WithPrompt(71, 960).WithTransposedValues())
	must(t, unix.Kill(p.Pid, unix.SIGKILL))
	if _, err := p.Wait(); err == nil {
		t.Error("the engine ended by itself")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat: %v", err)
	}
	saved := e.Save(t, dir, slot)
	if diff := Diff(e.Restore(t, dir, slot), saved); diff != "" {
		t.Errorf("restored process differs: %s", diff)
	}
}

// TestPressure saves more states than memory has room for, so that each save evicts an
// earlier state. With an SSD all are restored; without, each is whole or a miss.
func TestPressure(t *testing.T) {
	long(t)
	harness.KvfsOnly(t, "no eviction")
	e := prepare(t)
	for _, disk := range []string{"", "64MiB"} {
		t.Run("disk="+disk, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{MemorySize: "4MiB", Disk: disk})
			dir := slots(t, d)
			names := []string{"a.bin", "b.bin", "c.bin", "d.bin"} // there is room for three
			saved := map[string]Continuation{}
			for i, name := range names {
				saved[name] = e.WithPrompt(uint64(81+i), 300).Save(t, dir, name)
			}
			var missed int
			for _, name := range names {
				restored, err := e.TryRestore(t.Context(), dir, name)
				if err != nil {
					wantMiss(t, err)
					missed++
				} else if diff := Diff(restored, saved[name]); diff != "" {
					t.Errorf("%s: restored process differs: %s", name, diff)
				}
			}
			if lost := missed > 0; lost != (disk == "") {
				t.Errorf("%d of %d states are lost", missed, len(names))
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
