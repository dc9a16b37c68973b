package mem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// requireMount skips unless tmpfs can be mounted.
func requireMount(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("kvfs-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	must(t, unix.Unmount(dir, 0))
}

// TestNoSpace: a full tmpfs is ErrNoSpace, from Create and Commit too, and a full
// store can still be closed, opened, adopted and emptied.
func TestNoSpace(t *testing.T) {
	requireMount(t)
	o := Options{Dir: shmDir(t) + "/s", SizeBytes: 1 << 20, HeadroomBytes: 1, Huge: "never"}
	s := open(t, o)
	id := put(t, s, "g/a", "data")
	f, err := s.Open(id)
	must(t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("write: got %v", err)
	}
	must(t, commit(s, id, f, "g/a"))
	if free, err := s.FreeBytes(); err != nil || free != 0 {
		t.Errorf("FreeBytes: got %d, %v", free, err)
	}
	s.Close(true)
	s = open(t, o)
	if got := paths(t, s); len(got) != 1 {
		t.Errorf("adopted %v of a full store", got)
	}
	// Use up the inodes.
	var last driver.BlobID
	n := 0
	for ; ; n++ {
		id, g, err := s.Create()
		if err != nil {
			if !errors.Is(err, block.ErrNoSpace) {
				t.Errorf("Create: got %v, want %v", err, block.ErrNoSpace)
			}
			var be *block.Error
			var pe *os.PathError
			if !errors.As(err, &be) || !errors.As(err, &pe) || be.Tier != "mem" {
				t.Errorf("Create: %#v lacks the tier or the path", err)
			}
			break
		}
		last = id
		g.Close()
	}
	if n < 1<<15 {
		t.Errorf("only %d files in a store of 1 MiB", n)
	}
	g, err := s.Open(last)
	must(t, err)
	defer g.Close()
	if err := s.Commit(last, g, &driver.Record{Path: strings.Repeat("g/", 2000) + "b"}); !errors.Is(err, block.ErrNoSpace) {
		t.Errorf("Commit: got %v, want %v", err, block.ErrNoSpace)
	}
	must(t, s.Remove(id))
}

// TestRemount: an adopted tmpfs takes the new size, unless more is in use.
func TestRemount(t *testing.T) {
	requireMount(t)
	o := Options{Dir: shmDir(t) + "/s", SizeBytes: 64 << 20, HeadroomBytes: 1 << 20, Huge: "never"}
	s := open(t, o)
	put(t, s, "g/big", strings.Repeat("x", 32<<20))
	total := func(s *Store) int64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(s.dir, &st))
		return int64(st.Blocks) * st.Bsize
	}
	if got := total(s); got != 65<<20 {
		t.Errorf("new: got %d bytes", got)
	}
	s.Close(true)
	for _, step := range []struct {
		size int64
		want int64 // before adoption
		keep bool
		then int64 // after
	}{
		{size: 128 << 20, want: 129 << 20, keep: true, then: 129 << 20},
		{size: 48 << 20, want: 49 << 20, keep: true, then: 49 << 20},
		{size: 16 << 20, want: 49 << 20, keep: false, then: 17 << 20},
	} {
		o.SizeBytes = step.size
		o.Huge = "within_size"
		s = open(t, o)
		if got := total(s); got != step.want {
			t.Errorf("size %d: got %d, want %d", step.size, got, step.want)
		}
		must(t, s.Adopt(func(driver.BlobID, *driver.Record, bool) bool { return step.keep }))
		if got := total(s); got != step.then {
			t.Errorf("size %d after adoption: got %d, want %d", step.size, got, step.then)
		}
		s.Close(true)
	}
	open(t, o)
}

// policyOf returns the memory policy in the mount options of dir.
func policyOf(t *testing.T, dir string) string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(mounts) == 0 {
		t.Fatalf("%s is not mounted, %v", dir, err)
	}
	_, policy, _ := strings.Cut(mounts[0].VFSOptions, "mpol=")
	return policy
}

// TestNUMA: a tmpfs is mounted, and mounted anew, with the memory policy that was asked for; one of a node that is
// absent, and any without a tmpfs of its own, is refused, and nothing is left behind (A12).
func TestNUMA(t *testing.T) {
	requireMount(t)
	nodes, err := os.ReadFile(numaNodes)
	if err != nil {
		t.Skipf("no NUMA: %v", err)
	}
	o := Options{Dir: shmDir(t) + "/s", SizeBytes: 1 << 20}
	refused := func(policy, want string) {
		t.Helper()
		o := o
		o.NUMA = policy
		if s, err := Open(context.Background(), o); !errors.Is(err, block.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", policy, err, want)
			if err == nil {
				s.Close(false)
			}
		}
	}
	absent := "refuses it; nodes with memory: " + strings.TrimSpace(string(nodes))
	refused("bind:1023", absent)
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	s := open(t, o)
	if got := policyOf(t, s.dir); got != "" {
		t.Errorf("policy %q, want none", got)
	}
	s.Close(true)
	for _, policy := range []string{"bind:0", "prefer:0", "interleave:0"} {
		o.NUMA = policy
		s := open(t, o)
		if got := policyOf(t, s.dir); got != policy {
			t.Errorf("policy %q, want %q", got, policy)
		}
		s.Close(policy == "bind:0") // the next one is of an adopted tmpfs, the last of a new one
	}
	s = open(t, o)
	s.Close(true)
	refused("bind:1023", absent)
	open(t, o).Close(false)
	o.NoMount = true
	refused("bind:0", "takes a tmpfs of the store's own")
	o.NUMA = ""
	open(t, o)
}

// TestCloseWhileOpen: Close frees the memory of a mounted store though a file of
// it is open; that file keeps its bytes (A9), and neither mount nor directory
// stays.
func TestCloseWhileOpen(t *testing.T) {
	requireMount(t)
	o := Options{Dir: shmDir(t) + "/s"}
	s := open(t, o)
	big := put(t, s, "g/big", strings.Repeat("x", 16<<20))
	id := put(t, s, "g/a", "data")
	f, err := s.Open(id)
	must(t, err)
	defer f.Close()
	must(t, s.Close(false))
	var st unix.Statfs_t
	must(t, unix.Fstatfs(int(f.Fd()), &st))
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; used > 1<<20 {
		t.Errorf("%d bytes in use after Close; blob %d not freed", used, big)
	}
	b := make([]byte, 4)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "data" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := os.Lstat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
}

// TestDetach: the memory of a store becomes free only after the setup lock is, because much memory takes seconds.
func TestDetach(t *testing.T) {
	requireMount(t)
	p := place{parent: shmDir(t), name: "s", mount: true}
	s := open(t, Options{Dir: p.dir()})
	put(t, s, "g/big", strings.Repeat("x", 16<<20))
	s.Close(true)
	parent, err := openParent(t.Context(), p, false, unix.LOCK_EX)
	must(t, err)
	defer parent.Close()
	root, err := openDirAt(parent, p.name, p.dir())
	must(t, err)
	rest, err := detach(parent, p, root, true)
	must(t, err)
	defer rest.Close()
	if rest == nil {
		t.Skip("no open_tree(2)")
	}
	var st unix.Statfs_t
	must(t, unix.Fstatfs(int(rest.Fd()), &st))
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; used < 16<<20 {
		t.Errorf("%d bytes are left: freed under the lock", used)
	}
	if _, err := os.Lstat(p.dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
}

// TestOpenFails: when Open fails after the mount, the mount goes again.
func TestOpenFails(t *testing.T) {
	requireMount(t)
	o := Options{Dir: shmDir(t) + "/s"}
	var lim syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim))
	low := lim
	low.Cur = 100 // fewer than there are buckets
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Skip(err)
	}
	_, err := Open(context.Background(), o)
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v, want %v", err, unix.EMFILE)
	}
	if _, err := os.Lstat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
}

// TestPlaces: without Dir the store is where the package comment says, List
// finds it there, and root without CAP_SYS_ADMIN gets a directory instead of a
// mount, here and in Dir. Capabilities are those of one thread. The directories above the
// stores stay: others may be about to use them.
func TestPlaces(t *testing.T) {
	id := fmt.Sprintf("test-%d", os.Getpid())
	check := func(mounted bool, want string) {
		t.Helper()
		s := open(t, Options{ID: id})
		if s.Dir() != want || s.Status().Mounted != mounted {
			t.Errorf("got %+v, want %s, mounted %v", s.Status(), want, mounted)
		}
		put(t, s, "g/a", "data")
		infos, err := List()
		if err != nil {
			t.Error(err)
		}
		found := slices.ContainsFunc(infos, func(in Info) bool { return in.Dir == want && in.ID == id && in.Alive })
		if !found {
			t.Errorf("List: got %+v, want %s", infos, want)
		}
		if err := s.Close(false); err != nil {
			t.Error(err)
		}
	}
	base := shmBase(os.Geteuid())
	if _, err := os.Stat(base); errors.Is(err, os.ErrNotExist) {
		defer os.Remove(base) // not if another store is in it
	}
	shm := base + "/" + id
	if os.Geteuid() != 0 {
		check(false, shm)
		return
	}
	requireMount(t)
	check(true, runBase+"/"+id)

	runtime.LockOSThread() // for good: the thread ends with the test
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	must(t, unix.Capget(&hdr, &caps[0]))
	caps[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	must(t, unix.Capset(&hdr, &caps[0]))
	check(false, shm)
	s := open(t, Options{Dir: shmDir(t) + "/s"})
	if s.Status().Mounted {
		t.Error("mounted without the right to")
	}
}
