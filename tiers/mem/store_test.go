package mem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// TestMain lets the test binary be the process that is killed: see TestKill.
func TestMain(m *testing.M) {
	if dir := os.Getenv("KVFS_TEST_VICTIM"); dir != "" {
		victim(dir, os.Getenv("KVFS_TEST_NOMOUNT") != "")
	}
	os.Exit(m.Run())
}

// shmDir returns a directory on tmpfs that is removed with the test, with every
// mount that is left in it.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kvfs.test.")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() {
		paths, _ := filepath.Glob(dir + "/*")
		for _, p := range paths {
			if unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
				t.Logf("%s was still mounted", p)
			}
		}
		os.RemoveAll(dir)
	})
	return dir
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a store or fails, and closes it without keep at the end.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.SizeBytes == 0 {
		o.SizeBytes = 64 << 20
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(false); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// put commits a file of those bytes.
func put(t testing.TB, s *Store, path, data string) driver.BlobID {
	t.Helper()
	id, f, err := s.Create()
	must(t, err)
	defer f.Close()
	if _, err := f.WriteString(data); err != nil {
		t.Fatal(err)
	}
	must(t, commit(s, id, f, path))
	return id
}

// commit commits a file as it is.
func commit(s *Store, id driver.BlobID, f *os.File, path string) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return s.Commit(id, f, &driver.Record{Path: path, Size: fi.Size(), Mtime: fi.ModTime()})
}

// paths adopts everything and returns the paths.
func paths(t testing.TB, s *Store) map[string]driver.BlobID {
	t.Helper()
	got := map[string]driver.BlobID{}
	err := s.Adopt(func(id driver.BlobID, r *driver.Record, modified bool) bool {
		if modified {
			t.Errorf("%s: modified", r.Path)
		}
		got[r.Path] = id
		return true
	})
	must(t, err)
	return got
}

// modes runs a test on a tmpfs of the store's own and in a directory.
func modes(t *testing.T, run func(t *testing.T, o Options)) {
	t.Run("mount", func(t *testing.T) {
		requireMount(t)
		run(t, Options{Dir: shmDir(t) + "/s"})
	})
	t.Run("directory", func(t *testing.T) {
		run(t, Options{Dir: shmDir(t) + "/s", NoMount: true})
	})
}

// TestConformance: the store keeps the promises of driver.Primary, A9 and A11
// among them, mounted and not (A7).
func TestConformance(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		base := filepath.Dir(o.Dir)
		suite.RunPrimary(t, suite.PrimaryHarness{
			Open: func(t *testing.T, name string) driver.Primary {
				o := o
				o.ID, o.Dir = name, filepath.Join(base, name)
				return open(t, o)
			},
			// All that the death of a process does is to close its descriptors.
			Crash: func(_ *testing.T, p driver.Primary) {
				s := p.(*Store)
				s.gate.closed = true
				s.release()
			},
		})
		if left, _ := os.ReadDir(base); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// victim is the process that TestKill kills: it commits files, leaves one
// without a record, says so, and waits for its end.
func victim(dir string, noMount bool) {
	s, err := Open(context.Background(), Options{Dir: dir, SizeBytes: 64 << 20, NoMount: noMount})
	for i := 0; err == nil && i < 100; i++ {
		var id driver.BlobID
		var f *os.File
		if id, f, err = s.Create(); err != nil {
			break
		}
		fmt.Fprintf(f, "data %d", i)
		err = commit(s, id, f, fmt.Sprint("g/", i))
	}
	if err == nil {
		_, _, err = s.Create()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or the test is dead
	os.Exit(1)
}

// TestKill: after SIGKILL the next Open adopts every committed byte and frees the
// rest (A11); while the process lives, Open and Discard are refused with its pid.
func TestKill(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "KVFS_TEST_VICTIM="+o.Dir)
		if o.NoMount {
			cmd.Env = append(cmd.Env, "KVFS_TEST_NOMOUNT=1")
		}
		out, err := cmd.StdoutPipe()
		must(t, err)
		if _, err := cmd.StdinPipe(); err != nil { // closed by Wait
			t.Fatal(err)
		}
		must(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		line := make([]byte, 300)
		if n, _ := out.Read(line); string(line[:n]) != "ready\n" {
			t.Fatalf("victim says %q", line[:n])
		}
		var busy *BusyError
		_, err = Open(context.Background(), o)
		if !errors.As(err, &busy) || !errors.Is(err, ErrBusy) || busy.PID != cmd.Process.Pid || busy.Dir != o.Dir {
			t.Errorf("Open while it lives: got %v, want pid %d", err, cmd.Process.Pid)
		}
		if err := Discard(o.Dir); !errors.Is(err, ErrBusy) {
			t.Errorf("Discard while it lives: got %v", err)
		}
		must(t, cmd.Process.Kill())
		cmd.Wait()

		s := open(t, o)
		if s.mounted == o.NoMount || s.discarded != "" {
			t.Errorf("mounted %v, discarded %q", s.mounted, s.discarded)
		}
		got := paths(t, s)
		if st := s.Status(); len(got) != 100 || st.Adopted != 100 || st.Uncommitted != 1 || st.Damaged != 0 || !st.Adoptable {
			t.Errorf("got %d paths, %+v", len(got), st)
		}
		for i := range 100 {
			f, err := s.Open(got[fmt.Sprint("g/", i)])
			must(t, err)
			b := make([]byte, 20)
			if n, _ := f.Read(b); string(b[:n]) != fmt.Sprint("data ", i) {
				t.Errorf("block %d: got %q", i, b[:n])
			}
			f.Close()
		}
	})
}

// TestWaits: Close does not wait for a Close of another store. Open waits for the setup lock no longer than its context.
func TestWaits(t *testing.T) {
	dir := shmDir(t)
	s := open(t, Options{Dir: dir + "/s", NoMount: true})
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
	must(t, s.Close(false))
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if s, err := Open(ctx, Options{Dir: dir + "/s", NoMount: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v", s, err)
	}
}

// TestOptions: Open reports all violations at once, by field.
func TestOptions(t *testing.T) {
	_, err := Open(context.Background(), Options{ID: "../x", SizeBytes: 5, HeadroomBytes: -1, Huge: "maybe", Dir: "/"})
	for _, want := range []string{`ID "../x"`, "SizeBytes 5", "HeadroomBytes -1", `Huge "maybe"`, `Dir "/"`} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, block.ErrInvalid) {
			t.Errorf("got %v, want it to name %s", err, want)
		}
	}
	o, err := Options{}.withDefaults()
	if err != nil || o.ID != "default" || o.Huge != "within_size" || o.SizeBytes < 1<<27 || o.Logger == nil {
		t.Errorf("zero: got %+v, %v", o, err)
	}
	for i, p := range o.places() {
		if !p.own || p.name != "default" || p.mount != (i == 0 && os.Geteuid() == 0) {
			t.Errorf("place %d: %+v", i, p)
		}
	}
}

// TestBadRecord: Commit takes no record that Adopt would refuse.
func TestBadRecord(t *testing.T) {
	s := open(t, Options{Dir: shmDir(t) + "/s", NoMount: true})
	id, f, err := s.Create()
	must(t, err)
	defer f.Close()
	for _, tc := range []struct {
		r    driver.Record
		kind error
	}{
		{driver.Record{}, block.ErrInvalid},
		{driver.Record{Path: "a/../b"}, block.ErrInvalid},
		{driver.Record{Path: "a\x00"}, block.ErrInvalid},
		{driver.Record{Path: "a", Size: -1}, block.ErrInvalid},
		{driver.Record{Path: "a", Mode: 0o10000}, block.ErrInvalid},
		{driver.Record{Path: ".kvfs/x"}, block.ErrReserved},
		{driver.Record{Path: strings.Repeat("a/", 3000) + "a"}, block.ErrNameTooLong},
	} {
		if err := s.Commit(id, f, &tc.r); !errors.Is(err, tc.kind) {
			t.Errorf("%.20q: got %v, want %v", tc.r.Path, err, tc.kind)
		}
	}
	if err := s.Commit(id, f, &driver.Record{Dir: true}); err != nil {
		t.Errorf("the mount's own directory: %v", err)
	}
}

// TestList: List tells living stores from dead ones, and Discard frees those.
func TestList(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		base := filepath.Dir(o.Dir)
		must(t, os.Chmod(base, 0o700))
		beside := base + "/sock" // a file is no store
		must(t, os.WriteFile(beside, nil, 0o600))
		o.ID, o.Label = "s", "/mnt/kv \"\xff\n"
		s := open(t, o)
		put(t, s, "g/a", strings.Repeat("x", 1<<20))
		one := func() Info {
			t.Helper()
			infos, err := list([]string{base, base + "/absent"})
			if err != nil || len(infos) != 1 {
				t.Fatalf("got %+v, %v", infos, err)
			}
			return infos[0]
		}
		want := Info{
			ID: "s", Dir: o.Dir, Label: o.Label, UID: os.Geteuid(),
			PID: os.Getpid(), Alive: true, Mounted: !o.NoMount,
		}
		got := one()
		if got.Bytes < 1<<20 || got.Bytes > 4<<20 {
			t.Errorf("bytes: got %d", got.Bytes)
		}
		got.Bytes = 0
		if got != want {
			t.Errorf("alive: got %+v, want %+v", got, want)
		}
		s.Close(true)
		if got := one(); got.Alive || got.PID != os.Getpid() {
			t.Errorf("dead: got %+v", got)
		}
		if err := Discard(o.Dir); err != nil {
			t.Fatalf("Discard: %v", err)
		}
		if err := Discard(o.Dir); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("Discard twice: got %v", err)
		}
		if left, _ := os.ReadDir(base); len(left) != 1 || os.Remove(beside) != nil {
			t.Errorf("left: %v", left)
		}
	})
	dir, err := os.MkdirTemp("/dev/shm", "kvfs-0-others-") // not of a uid
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	defer os.RemoveAll(dir)
	must(t, os.Mkdir(dir+"/x", 0o700))
	infos, err := List()
	if err != nil {
		t.Errorf("List: %v", err)
	}
	if slices.ContainsFunc(infos, func(in Info) bool { return filepath.Dir(in.Dir) == dir }) {
		t.Errorf("List looks into %s", dir)
	}
}

// TestReadWithoutGetxattrat: a kernel without the call reads the same records, short and long, and the
// same lack of one.
func TestReadWithoutGetxattrat(t *testing.T) {
	s := open(t, Options{Dir: shmDir(t) + "/s", NoMount: true})
	long := strings.Repeat(strings.Repeat("d", block.MaxName)+"/", 15) + "long"
	want := map[driver.BlobID]string{put(t, s, "short", "x"): "short", put(t, s, long, "xy"): long}
	for _, at := range []bool{false, s.hasGetxattrat()} {
		id, f, err := s.Create() // without a record
		must(t, err)
		f.Close()
		ids := append(slices.Collect(maps.Keys(want)), id)
		batch, err := s.readBatch(ids, at)
		if err != nil || len(batch) != len(want) || s.counts.uncommitted.Swap(0) != 1 {
			t.Fatalf("getxattrat %t: %d files, %v, %+v", at, len(batch), err, s.Status())
		}
		for _, f := range batch {
			if f.record.Path != want[f.id] || f.modified {
				t.Errorf("getxattrat %t: got %+v", at, f.record)
			}
		}
	}
}
