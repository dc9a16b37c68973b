package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/state"
)

// sharedEngine opens an engine for several mounts. It skips the test where that is not
// possible.
func sharedEngine(t testing.TB, mounts *Mounts, memory mem.Options, below ...state.SecondaryOptions) *tiers.Engine {
	t.Helper()
	engine, err := openShared(t.Context(), mounts, memory, below...)
	if err != nil {
		t.Skipf("no engine: %v", err)
	}
	t.Cleanup(func() { must(t, engine.Close(context.Background(), false)) })
	return engine
}

func openShared(ctx context.Context, mounts *Mounts, memory mem.Options, below ...state.SecondaryOptions) (*tiers.Engine, error) {
	memory.SizeBytes = 64 << 20
	primary, err := mem.Open(ctx, memory)
	if err != nil {
		return nil, err
	}
	return tiers.Open(ctx, state.Options{
		Primary: primary, CapacityBytes: 64 << 20, HeadroomBytes: 64 << 20, Kernels: true, LookupLease: -1,
		Alive: mounts.Alive, Invalidate: mounts.Invalidate, Dropped: mounts.Dropped, Secondaries: below,
	})
}

// ownEngine opens an engine for one mount, over what wrap makes of a memory tier. It skips the test
// where that is not possible.
func ownEngine(t testing.TB, memory mem.Options, wrap func(driver.Primary) driver.Primary) (*tiers.Engine, *Hooks) {
	t.Helper()
	memory.SizeBytes = 64 << 20
	primary, err := mem.Open(t.Context(), memory)
	if err != nil {
		t.Skipf("memory tier: %v", err)
	}
	hooks := &Hooks{}
	engine, err := tiers.Open(t.Context(), state.Options{
		Primary: wrap(primary), CapacityBytes: 64 << 20, HeadroomBytes: 64 << 20,
		Alive: hooks.Alive, Invalidate: hooks.Invalidate, Dropped: hooks.Dropped,
	})
	must(t, err)
	return engine, hooks
}

func memoryIn(t testing.TB) mem.Options {
	dir := t.TempDir()
	return mem.Options{ID: filepath.Base(filepath.Dir(dir)), Dir: filepath.Join(dir, "memory")}
}

// sessionDirs are the mounts that openSession made and that are not cleaned up yet.
var sessionDirs sync.Map

// abortSessions fails all requests of these mounts, so that clients can end that wait for an
// answer that a failed test does not give.
func abortSessions() {
	sessionDirs.Range(func(dir, _ any) bool {
		unix.Unmount(dir.(string), unix.MNT_FORCE|unix.MNT_DETACH)
		return true
	})
}

// openSession mounts in this process. It skips the test where that is not possible.
func openSession(t testing.TB) *device.Session {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mount(2) needs root")
	}
	x, err := device.OpenSession(device.MountOptions{Dir: t.TempDir()})
	if err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	sessionDirs.Store(x.Dir, nil)
	t.Cleanup(func() {
		sessionDirs.Delete(x.Dir)
		err := errors.Join(x.Unmount(), x.Close())
		if err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return x
}

func attachOptions() Options {
	return Options{EntryTimeout: time.Hour, AttrTimeout: time.Hour, Status: func() []byte { return []byte("fresh") }}
}

// attachHere answers a session in this process.
func attachHere(t testing.TB, engine *tiers.Engine, mounts *Mounts, x *device.Session) *Server {
	t.Helper()
	s, err := Attach(engine, mounts, x, attachOptions())
	must(t, err)
	t.Cleanup(s.Detach)
	if s.ReadPath() != "passthrough" {
		t.Skipf("no passthrough: %s", s.PathReason())
	}
	return s
}

// TestSharedMounts (B30, B31): two mounts of one engine, each used by a process of its own,
// show the same files; the kernel reads them by itself on both; what one changes the other
// sees as soon as its kernel has been told, although that may keep names for an hour.
func TestSharedMounts(t *testing.T) {
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t))
	x1, x2 := openSession(t), openSession(t)
	s1, s2 := attachHere(t, engine, mounts, x1), attachHere(t, engine, mounts, x2)
	c1, c2 := startClient(t), startClient(t)
	at1 := func(name string) string { return filepath.Join(x1.Dir, "group", name) }
	at2 := func(name string) string { return filepath.Join(x2.Dir, "group", name) }
	told := func() { s2.files.kernel.Flush(t.Context()) }

	c2.do("fails", at2("block")) // absence is not kept
	c1.do("write", at1("block"))
	released(t, s1) // until then it may be read through this process
	c2.do("read", at2("block"))
	c2.do("write", at2("other"))
	released(t, s2)
	c1.do("read", at1("other"))
	released(t, s2)
	told() // of what c1 did before: a name that is forgotten later is looked up
	before := s2.Ops()
	for range 10 {
		c2.do("read", at2("block"))
	}
	if got := since(s2, before); got["OPEN"] != 10 || got["READ"] != 0 || got["LOOKUP"] != 0 {
		t.Errorf("10 times open, read, close on the second mount: requests %v", got)
	}
	if n := s1.Ops()["READ"] + s1.Ops()["WRITE"] + s2.Ops()["READ"]; n > 1 { // the first block of the group is written through
		t.Errorf("%d reads and writes passed through this process", n)
	}

	c1.do("rename", at1("block")+" "+at1("moved"))
	s1.files.kernel.Flush(t.Context())
	before = s1.Ops()
	c1.do("read", at1("moved"))
	if got := since(s1, before); got["LOOKUP"] != 0 {
		t.Errorf("who asked for a rename was told of it: requests %v", got)
	}
	told()
	c2.do("fails", at2("block"))
	c2.do("read", at2("moved"))
	c1.do("chmod", at1("moved"))
	told()
	c2.do("is-private", at2("moved"))
	c1.do("put", "new "+at1("moved"))
	told()
	c2.do("get", "new "+at2("moved"))
	c1.do("put", "newer "+at1("new"))
	c2.do("get", "newer "+at2("new"))
	c1.do("rename", at1("new")+" "+at1("moved"))
	told()
	c2.do("get", "newer "+at2("moved"))
	c1.do("unlink", at1("moved"))
	told()
	c2.do("fails", at2("moved"))
}

// TestDetach: what the kernel of a mount holds is given back when its mount process is
// gone, with clients killed or not; what it was writing is not committed; the other mount
// goes on.
func TestDetach(t *testing.T) {
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t))
	x1, x2 := openSession(t), openSession(t)
	s1, s2 := attachHere(t, engine, mounts, x1), attachHere(t, engine, mounts, x2)
	dir1, dir2 := filepath.Join(x1.Dir, "group"), filepath.Join(x2.Dir, "group")
	other := startClient(t)
	for _, name := range []string{"a", "b", "c"} {
		other.do("write", filepath.Join(dir2, name))
	}
	reader, writer, killed := startClient(t), startClient(t), startClient(t)
	reader.do("open", filepath.Join(dir1, "a"))
	killed.do("open", filepath.Join(dir1, "b"))
	writer.do("create", filepath.Join(dir1, "half"))
	writer.do("write-held", "")
	if got := engine.Stats().PinnedBytes; got == 0 {
		t.Fatal("open blocks are not pinned")
	}
	killed.kill()
	must(t, x1.Close())
	s1.Detach()
	s1.Detach()
	released(t, s2)
	if got := engine.Stats(); got.PinnedBytes != 0 || got.Writing != 0 {
		t.Errorf("%d bytes pinned, %d files being written", got.PinnedBytes, got.Writing)
	}
	reader.do("read-held", "") // the kernel does so
	reader.do("fails", filepath.Join(dir1, "a"))
	other.do("fails", filepath.Join(dir2, "half"))
	other.do("read", filepath.Join(dir2, "a"))
	released(t, s2)
	reply, err := engine.EvictFrom(t.Context(), tiers.EvictRequest{Tier: "memory", All: true, Force: true})
	if err != nil || reply.KeptN != 0 || reply.Blocks != 3 {
		t.Errorf("evicted %+v, %v; want all 3 blocks", reply, err)
	}
	s2.files.kernel.Flush(t.Context())
	other.do("fails", filepath.Join(dir2, "a"))
	other.do("write", filepath.Join(dir2, "d"))
	must(t, x2.Unmount())
	s2.Wait()
	if got := engine.Stats().PinnedBytes; got != 0 {
		t.Errorf("%d bytes pinned without a mount", got)
	}
}

// TestAttachRefuses shows what Attach does not take, and that it leaves nothing behind then.
func TestAttachRefuses(t *testing.T) {
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t))
	x := openSession(t)
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	for name, bad := range map[string]*device.Session{
		"epoch 0":   {Dir: x.Dir, Dev: x.Dev},
		"epoch":     {Dir: x.Dir, Dev: x.Dev, Epoch: device.MaxEpoch + 1},
		"no files":  {Dir: x.Dir, Epoch: 1},
		"no mount":  {Dir: x.Dir, Dev: null, Epoch: 1},
		"bad state": {Dir: x.Dir, Dev: x.Dev, Epoch: 2, Init: []byte("x")},
	} {
		if _, err := Attach(engine, mounts, bad, attachOptions()); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	if all := mounts.list(); len(all) != 0 {
		t.Errorf("%d mounts", len(all))
	}
	s := attachHere(t, engine, mounts, x)
	again := *x
	if _, err := Attach(engine, mounts, &again, attachOptions()); err == nil {
		t.Error("a second owner without what the first one kept: no error")
	}
	startClient(t).do("write", filepath.Join(x.Dir, "group", "block"))
	if n := s.Ops()["CREATE"]; n != 1 {
		t.Errorf("%d files created", n)
	}
}

// TestResume (A10): a process with a mount of its own hands it over, again and again; each successor has an
// engine of its own over the same memory. One that reads other bytes than memory holds lets go of the mount.
// Clients that wait are answered by the next one.
func TestResume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mount(2) needs root")
	}
	store := filepath.Join(t.TempDir(), "memory")
	t.Cleanup(func() { unix.Unmount(store, unix.MNT_DETACH) })
	open := func(wrong int64) (*tiers.Engine, *Hooks) {
		return ownEngine(t, mem.Options{ID: "resume", Dir: store}, func(p driver.Primary) driver.Primary {
			m := &faultyMemory{Primary: p, flaw: flaws(t)["another byte"]}
			m.wrong.Store(wrong)
			return m
		})
	}
	engine, hooks := open(0)
	o := attachOptions()
	o.Dir = t.TempDir()
	s, err := Mount(engine, hooks, o)
	if err != nil {
		t.Skipf("mounting is not allowed here: %v; %v", err, engine.Close(context.Background(), false))
	}
	t.Cleanup(func() {
		must(t, errors.Join(s.Unmount(), engine.Close(context.Background(), false)))
		s.Wait()
	})
	if err := s.Lasting(); err != nil {
		t.Skip(err)
	}
	c, reader := startClient(t), startClient(t)
	path := filepath.Join(o.Dir, "group", "block")
	c.do("write", path)
	for epoch := uint32(1); epoch < 5; epoch++ {
		if got := s.Epoch(); got != epoch {
			t.Errorf("epoch %d, want %d", got, epoch)
		}
		c.do("read", path)
		reader.do("open", path)
		x, err := s.HandOver()
		must(t, err)
		must(t, engine.Close(context.Background(), true))
		reader.do("read-held", "")
		c.begin("read", path)
		answers := []string{"ok"}
		if epoch == 2 { // its wrong bytes reach nobody; who has met two owners that ended meanwhile may get ESTALE
			answers = append(answers, unix.ESTALE.Error())
			wrong, hooks := open(1 << 30)
			if _, err := Resume(wrong, hooks, x, attachOptions()); !errors.Is(err, ErrSelfTest) {
				t.Fatalf("got %v", err)
			}
			must(t, wrong.Close(context.Background(), true))
			epoch++
			x.Epoch++
		}
		engine, hooks = open(0)
		if s, err = Resume(engine, hooks, x, attachOptions()); err != nil {
			t.Fatal(err)
		}
		c.end(answers...)
		reader.do("read-held", "")
		reader.do("close-held", "")
	}
	before := s.Ops()
	c.do("read", path)
	if got := since(s, before); got["READ"] != 0 {
		t.Errorf("a read after the last: requests %v", got)
	}
}
