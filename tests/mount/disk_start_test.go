package mount

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// wantInLog fails unless the text has all of want in it.
func wantInLog(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("the log has no %q:\n%s", w, text)
		}
	}
}

// TestDiskRefused shows that a directory that cannot be right ends the daemon
// at its start, with a line that says which and why, and leaves nothing
// mounted.
func TestDiskRefused(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	base := harness.NewDiskDir(t, nil)
	file := filepath.Join(base, "file")
	must(t, "write", os.WriteFile(file, []byte("no directory"), 0o644))
	foreign := filepath.Join(base, "foreign")
	must(t, "mkdir", os.Mkdir(foreign, 0o755))
	must(t, "write", os.WriteFile(filepath.Join(foreign, "kvfs-disk"), pattern("junk", 10_000), 0o644))
	for _, c := range []struct {
		name string
		dir  string
		opts harness.Options
		want []string
	}{
		{"parent missing", filepath.Join(base, "none", "tier"), harness.Options{}, []string{"does not exist"}},
		{"a file", file, harness.Options{}, []string{"not a directory"}},
		{"on tmpfs", "", harness.Options{}, []string{"tmpfs"}},
		{"files of something else", base, harness.Options{}, []string{"choose an empty directory"}},
		{"something else's superblock", foreign, harness.Options{}, []string{"kvfs-disk"}},
		{"size below one slab", filepath.Join(base, "small"), harness.Options{Disk: "4KiB", Flags: []string{"--disk-cascade", "async"}}, []string{"size"}},
		{"unknown engine", filepath.Join(base, "x"), harness.Options{Flags: []string{"--directio-engine", "aio"}}, []string{"aio"}},
		{"unknown cascade", filepath.Join(base, "x"), harness.Options{Flags: []string{"--disk-cascade", "maybe"}}, []string{"maybe"}},
		{"unknown admission", filepath.Join(base, "x"), harness.Options{Flags: []string{"--disk-admission", "third"}}, []string{"third"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.dir == "" {
				c.dir = shmDir(t)
			}
			if c.opts.DiskDir = c.dir; c.opts.Disk == "" {
				c.opts.Disk = "64MiB"
			}
			c.opts.ExpectFail = true
			d := harness.Mount(t, c.opts)
			if d.ExitCode <= 0 {
				t.Errorf("exit code %d", d.ExitCode)
			}
			wantInLog(t, d.Log(), c.want...)
			if len(c.opts.Flags) == 0 {
				wantInLog(t, withoutCommand(d.Log()), c.dir)
			}
			wantUnmounted(t, d)
		})
	}
	if got, _ := os.ReadFile(filepath.Join(foreign, "kvfs-disk")); string(got) != string(pattern("junk", 10_000)) {
		t.Error("the file of something else was changed")
	}
}

// withoutCommand leaves out the lines with which the harness shows the command.
func withoutCommand(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "+ ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// shmDir returns a directory on tmpfs.
func shmDir(t *testing.T) string {
	t.Helper()
	dir, err := harness.MemoryDir("disk")
	if err != nil || harness.FSType("/dev/shm") != "tmpfs" {
		os.Remove(dir)
		harness.Skip(t, "/dev/shm is no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestDiskOwnedByAnother starts a daemon that is not root on a directory of
// another user.
func TestDiskOwnedByAnother(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	runInside(t, "TestDiskOwnedByAnotherInside", "with")
}

func TestDiskOwnedByAnotherInside(t *testing.T) {
	insideOnly(t)
	dir := harness.NewDiskDir(t, nil)
	d := harness.Mount(t, harness.Options{User: nobody, Disk: "64MiB", DiskDir: dir, ExpectFail: true})
	if d.ExitCode <= 0 {
		t.Errorf("exit code %d", d.ExitCode)
	}
	wantInLog(t, d.Log(), dir, "belongs to uid")
	wantUnmounted(t, d)
}

// TestDiskTwoDaemons shows that a second daemon on a directory refuses, and
// that the first does not notice.
func TestDiskTwoDaemons(t *testing.T) {
	d := diskMount(t, harness.Options{})
	p := coldOne(t, d, "x", mib)
	second := diskMount(t, harness.Options{DiskDir: d.DiskDir, ExpectFail: true})
	if second.ExitCode <= 0 {
		t.Errorf("exit code of the second: %d", second.ExitCode)
	}
	wantInLog(t, second.Log(), d.DiskDir, "in use")
	wantUnmounted(t, second)
	// fsck of a directory in use cannot check it, let alone repair it.
	fsck(t, d.DiskDir, false, 8)
	fsck(t, d.DiskDir, true, 8)
	wantBytes(t, p, pattern(p, mib))
	q := coldOne(t, d, "y", mib)
	wantBytes(t, q, pattern(q, mib))
	d.Kill()
	third := diskMount(t, harness.Options{DiskDir: d.DiskDir})
	wantBytes(t, third.Path("x"), pattern(p, mib))
}

// TestDiskFsckMissing shows the exit code for what cannot be checked.
func TestDiskFsckMissing(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	dir := harness.NewDiskDir(t, nil)
	fsck(t, filepath.Join(dir, "none"), false, 8)
	fsck(t, dir, false, 8) // no tier in it
	if left := listNames(t, dir); len(left) != 0 {
		t.Errorf("fsck made %q", left)
	}
}

// TestDiskFileLimit runs the daemon under a small RLIMIT_FSIZE: slabs cannot be
// made, or writes to them end short; it refuses to start for that reason, or
// goes on with memory and says so.
func TestDiskFileLimit(t *testing.T) {
	for _, limit := range []uint64{3 * mib, 64 * kib} {
		d := tryDiskMount(t, harness.Options{Launch: harness.Launch{MaxFileBytes: limit}, Flags: []string{"--disk-slab-size", "4MiB"}})
		if d == nil {
			continue
		}
		blocks := numbered(d.Dir, 30, 30_000)
		within(t, "the mount works", func() {
			writeAll(t, blocks)
			waitDrained(t, d)
			survey(t, blocks)
		})
		wantBlocks(t, blocks)
		s := diskStatus(t, d)
		t.Logf("limit %d: %+v", limit, s)
		if s.Stored == 0 && s.State == "online" && s.CascadeFailed+s.CascadeSkipped == 0 {
			t.Errorf("limit %d: nothing is stored, and the status does not say so: %+v", limit, s)
		}
	}
}

// tryDiskMount is diskMount that returns nil where the daemon refuses, which it
// must do with the name of the directory.
func tryDiskMount(t *testing.T, opts harness.Options) *harness.Daemon {
	t.Helper()
	harness.KvfsOnly(t, "a disk tier")
	opts.Disk = "64MiB"
	opts.MayFail = true
	d := harness.Mount(t, opts)
	if d.Running() {
		return d
	}
	wantRefusal(t, d)
	t.Logf("refused: %s", d.LastLog())
	return nil
}

// engineOf returns the I/O engine of the disk tier, as the status has it.
func engineOf(t *testing.T, d *harness.Daemon) string {
	t.Helper()
	text, err := json.Marshal(d.Status().Raw["secondaries"])
	must(t, "marshal", err)
	for _, name := range []string{"io_uring", "pread"} {
		if strings.Contains(string(text), `"`+name+`"`) {
			return name
		}
	}
	return "unknown: " + string(text)
}

// TestDiskEngines shows the choice of the I/O engine: io_uring where the kernel
// allows it, pread where it does not or is asked for; an explicit io_uring that
// is refused ends the daemon. The sysctl that forbids io_uring is the whole machine's: what it
// does is tested in directio, with a file in its place.
func TestDiskEngines(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	needRoot(t)
	t.Run("pread", func(t *testing.T) {
		d := diskMount(t, harness.Options{Flags: []string{"--directio-engine", "pread"}})
		engineWorks(t, d, "pread")
	})
	t.Run("auto under seccomp", func(t *testing.T) {
		d := diskMount(t, harness.Options{Launch: harness.Launch{NoIOUring: true}})
		engineWorks(t, d, "pread")
	})
	t.Run("io_uring under seccomp", func(t *testing.T) {
		d := diskMount(t, harness.Options{
			Launch: harness.Launch{NoIOUring: true}, Flags: []string{"--directio-engine", "io_uring"}, ExpectFail: true,
		})
		wantNoRing(t, d)
	})
	t.Run("io_uring", func(t *testing.T) {
		if !ringsAllowed() {
			harness.Skip(t, "no io_uring here")
		}
		d := diskMount(t, harness.Options{Flags: []string{"--directio-engine", "io_uring"}})
		engineWorks(t, d, "io_uring")
	})
	t.Run("auto", func(t *testing.T) {
		if !ringsAllowed() {
			harness.Skip(t, "no io_uring here")
		}
		engineWorks(t, diskMount(t, harness.Options{}), "io_uring")
	})
}

func engineWorks(t *testing.T, d *harness.Daemon, want string) {
	t.Helper()
	if got := engineOf(t, d); got != want {
		t.Errorf("engine: got %s, want %s", got, want)
	}
	blocks := sizedBlocks(d.Dir)
	cold(t, d, blocks)
	wantBlocks(t, blocks)
	crashAll(d)
	wantBlocks(t, blocks)
}

func wantNoRing(t *testing.T, d *harness.Daemon) {
	t.Helper()
	if d.ExitCode <= 0 {
		t.Errorf("exit code %d", d.ExitCode)
	}
	wantInLog(t, d.Log(), "io_uring")
	wantUnmounted(t, d)
}

// ringsAllowed reports whether this process may set up a ring. The call has no
// parameters, so that the answer is EFAULT where it is allowed.
func ringsAllowed() bool {
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	return errno == unix.EFAULT
}
