package llama

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
