package mount

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

var nobody = &harness.User{UID: 65534, GID: 65534}

// TestNonRoot runs TestNonRootInside, where /dev/fuse is open to all users.
func TestNonRoot(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	if _, err := exec.LookPath("fusermount3"); err != nil {
		harness.Skip(t, "fusermount3 is not installed")
	}
	runInside(t, "TestNonRootInside", "with")
}

// TestRootOnly shows that nobody but root gets into a mount by root with allow_other off, where the kernel asks for no
// attributes to check modes: a store is two requests less.
func TestRootOnly(t *testing.T) {
	harness.KvfsOnly(t, "settings of a daemon")
	d := harness.Mount(t, harness.Options{Flags: []string{"--mount-allow-other", "off"}})
	group := d.Path("g")
	must(t, "mkdir", os.Mkdir(group, 0o755))
	put := func(name string) string {
		p := filepath.Join(group, name)
		must(t, "write", os.WriteFile(p+".tmp", pattern(name, 64<<10), 0o644))
		must(t, "rename", os.Rename(p+".tmp", p))
		return p
	}
	asked := func() any { return field(d.Status().Raw, []string{"mount", "ops", "GETATTR"}) }
	p := put("first")
	before := asked()
	for i := range 20 {
		name := fmt.Sprint(i)
		wantBytes(t, put(name), pattern(name, 64<<10))
	}
	if after := asked(); after != before {
		t.Errorf("%v requests for attributes after 20 stores, %v before", after, before)
	}
	must(t, "chmod", unix.Chmod(p, 0o444))
	_, err := harness.NewActor(t, nobody).Open(p, unix.O_RDONLY, 0)
	wantErrno(t, "open by nobody", err, unix.EACCES)
	_, err = tryOpen(t, d.Path(".kvfs", "status"), unix.O_WRONLY, 0)
	wantErrno(t, "open of a control file for writing", err, unix.EACCES)
}

// TestNonRootInside runs the daemon as nobody: it mounts by fusermount3, cannot
// use passthrough, and keeps the store and load contract all the same, with an SSD tier, too. The
// mount is private to the user.
func TestNonRootInside(t *testing.T) {
	insideOnly(t)
	d := harness.Mount(t, harness.Options{User: nobody, Disk: "128MiB", Flags: []string{"--disk-cascade", "sync"}})
	a, b := harness.NewActor(t, nobody), harness.NewActor(t, nobody)

	status, err := a.ReadFile(d.Path(".kvfs", "status"))
	must(t, "read status", err)
	var s harness.Status
	must(t, "parse status", json.Unmarshal(status, &s))
	if s.Mount.ReadPath == "" || s.Mount.ReadPath == "passthrough" || !s.Mount.Tested {
		t.Errorf("read path: got %q, tested %v; want one that needs no privilege (A10)", s.Mount.ReadPath, s.Mount.Tested)
	}

	for i := range 16 {
		p := d.Path(hash64(i))
		storeAs(t, a, p, pattern(p, 2*mib))
		wantSeen(t, b, p, pattern(p, 2*mib))
	}
	if _, stderr, code := harness.KvfsAs(t, nobody, "evict", "--tier", "memory", "--all", d.Dir); code != 0 {
		t.Fatalf("evict as nobody: exit code %d, %s", code, stderr)
	}
	for i := range 16 { // from the SSD, and spliced
		wantSeen(t, b, d.Path(hash64(i)), pattern(d.Path(hash64(i)), 2*mib))
	}
	nonRootVisibility(t, d, a, b)

	_, err = harness.Self().Stat(d.Path("x"))
	wantErrno(t, "stat by root", err, unix.EACCES)
	_, err = harness.NewActor(t, &harness.User{UID: 23001, GID: 23001}).Stat(d.Path("x"))
	wantErrno(t, "stat by another user", err, unix.EACCES)

	d.Kill()
	d.Restart()
	for i := range 16 {
		wantSeen(t, b, d.Path(hash64(i)), pattern(d.Path(hash64(i)), 2*mib))
	}
	if got := len(harness.MountPoints(d.Dir)); got != 1 {
		t.Errorf("%d mounts at the mount point, want 1", got)
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	wantUnmounted(t, d)
}

// nonRootVisibility is the core of sections 3.1 to 3.4 with both processes as
// the daemon's user.
func nonRootVisibility(t *testing.T, d *harness.Daemon, a, b *harness.Actor) {
	t.Helper()
	p := d.Path("x")
	fd, err := a.Open(p, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC, 0o644)
	must(t, "open", err)
	for i := range 4 {
		_, err := a.Write(fd, pattern(p, 4*mib)[i*mib:(i+1)*mib])
		must(t, "write", err)
		wantAbsent(t, b, p)
		wantSeen(t, a, p, pattern(p, 4*mib)[:(i+1)*mib])
	}
	must(t, "close", a.Close(fd))
	wantSeen(t, b, p, pattern(p, 4*mib))
	st, err := b.Stat(p)
	if err != nil || st.Uid != nobody.UID || st.Mode != unix.S_IFREG|0o644 {
		t.Errorf("stat: owner %d, mode %#o, %v", st.Uid, st.Mode, err)
	}
	reader, err := b.Open(p, unix.O_RDONLY|unix.O_DIRECT, 0)
	must(t, "open", err)
	must(t, "replace", a.WriteFile(p+".tmp", pattern("new", mib)))
	must(t, "rename", a.Rename(p+".tmp", p))
	old, err := b.Pread(reader, 5*mib, 0)
	must(t, "pread", err)
	sameBytes(t, "old handle", old, pattern(p, 4*mib))
	wantSeen(t, b, p, pattern("new", mib))
	must(t, "mkdir", a.Mkdir(d.Path("dir"), 0o777))
	for i := range 20 {
		must(t, "write", a.WriteFile(d.Path("dir", fmt.Sprint(i)), pattern(fmt.Sprint(i), 1000)))
	}
	names, err := b.Names(d.Path("dir"))
	if err != nil || len(names) != 20 {
		t.Errorf("%s: %d names, %v; want 20", filepath.Base("dir"), len(names), err)
	}
	for _, name := range names {
		must(t, "unlink", b.Unlink(d.Path("dir", name)))
	}
	must(t, "rmdir", b.Rmdir(d.Path("dir")))
}

// TestSmallShm runs TestSmallShmInside, where /dev/fuse is open to all users.
func TestSmallShm(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	if _, err := exec.LookPath("fusermount3"); err != nil {
		harness.Skip(t, "fusermount3 is not installed")
	}
	runInside(t, "TestSmallShmInside", "with")
}

// TestSmallShmInside: without root the memory tier shares a file system with other programs. In a container that has
// 64 MiB, however large memory.size is. The daemon says so and uses the room that there is: stores go on, old blocks
// are evicted, and df shows the size that can be held.
func TestSmallShmInside(t *testing.T) {
	insideOnly(t)
	shm := t.TempDir()
	must(t, "mount tmpfs", unix.Mount("shm", shm, "tmpfs", 0, "size=64m,mode=1777"))
	t.Cleanup(func() { must(t, "unmount tmpfs", unix.Unmount(shm, unix.MNT_DETACH)) })
	must(t, "open the way", os.Chmod(filepath.Dir(shm), 0o755))
	d := harness.Mount(t, harness.Options{User: nobody, MemorySize: "1GiB", Flags: []string{"--memory-dir", filepath.Join(shm, "kv")}})
	a := harness.NewActor(t, nobody)
	for i := range 64 {
		p := d.Path(hash64(i))
		storeAs(t, a, p, pattern(p, 2*mib))
	}
	wantSeen(t, a, d.Path(hash64(63)), pattern(d.Path(hash64(63)), 2*mib))
	st, err := a.Statfs(d.Dir)
	must(t, "statfs", err)
	if got := int64(st.Blocks) * st.Bsize; got > 64*mib || got < 32*mib {
		t.Errorf("df: %d MiB, want at most the 64 that there are", got/mib)
	}
	if !strings.Contains(d.Log(), "using less") {
		t.Errorf("no warning:\n%s", d.Log())
	}
}
