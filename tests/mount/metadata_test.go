package mount

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestMetadata is section 3.3 of the contract.
func TestMetadata(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	runRows(t, d, slices.Concat(sizeRows, timeRows, ownerRows, statfsRows))
}

// older returns a time that no clock of the test shows.
var older = unix.Timespec{Sec: 1_000_000_000, Nsec: 123_456_789}

func setTimes(t testing.TB, path string, atime, mtime unix.Timespec) {
	t.Helper()
	err := again(func() error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{atime, mtime}, 0)
	})
	must(t, "utimensat", err)
}

func wantTime(t testing.TB, what string, got, want unix.Timespec) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %d.%09d, want %d.%09d", what, got.Sec, got.Nsec, want.Sec, want.Nsec)
	}
}

var sizeRows = []row{
	{"P0 st_blocks and st_blksize are sane, nlink is 1 (stdio, du)", func(t *testing.T, e *env) {
		store(t, e.path("x"), pattern("x", mib))
		st := stat(t, e.path("x"))
		if st.Blocks*512 < mib || st.Blocks*512 > 4*mib {
			t.Errorf("st_blocks: got %d for 1 MiB", st.Blocks)
		}
		if st.Blksize < 4096 || st.Blksize&(st.Blksize-1) != 0 {
			t.Errorf("st_blksize: got %d, want a power of two from 4096", st.Blksize)
		}
		if st.Nlink != 1 {
			t.Errorf("st_nlink: got %d, want 1", st.Nlink)
		}
		if !harness.Reference() && (st.Blksize < 128*kib || st.Blksize > mib) {
			t.Errorf("st_blksize: got %d, want 128 KiB to 1 MiB", st.Blksize)
		}
	}},
}

var timeRows = []row{
	{"P0 utimensat: UTIME_NOW, UTIME_OMIT, both, by handle and by name (llm-d, llama.cpp)", func(t *testing.T, e *env) {
		omit, now := unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Nsec: unix.UTIME_NOW}
		store(t, e.path("x"), []byte("x"))
		setTimes(t, e.path("x"), older, older)
		wantTime(t, "atime", stat(t, e.path("x")).Atim, older)
		wantTime(t, "mtime", stat(t, e.path("x")).Mtim, older)
		setTimes(t, e.path("x"), now, omit)
		if st := stat(t, e.path("x")); st.Atim.Sec <= older.Sec {
			t.Errorf("atime: got %d, want now", st.Atim.Sec)
		}
		wantTime(t, "mtime after UTIME_OMIT", stat(t, e.path("x")).Mtim, older)
		setTimes(t, e.path("x"), unix.Timespec{Sec: 5, Nsec: 6}, omit)
		setTimes(t, e.path("x"), omit, unix.Timespec{Sec: 7, Nsec: 8})
		wantTime(t, "atime", stat(t, e.path("x")).Atim, unix.Timespec{Sec: 5, Nsec: 6})
		wantTime(t, "mtime", stat(t, e.path("x")).Mtim, unix.Timespec{Sec: 7, Nsec: 8})
		setTimes(t, e.path("x"), omit, omit)
		wantTime(t, "mtime", stat(t, e.path("x")).Mtim, unix.Timespec{Sec: 7, Nsec: 8})
		f := open(t, e.path("x"), unix.O_WRONLY, 0)
		must(t, "futimes", unix.Futimes(f.fd, []unix.Timeval{{Sec: 9}, {Sec: 10}}))
		f.close()
		wantTime(t, "mtime by handle", stat(t, e.path("x")).Mtim, unix.Timespec{Sec: 10})
		st, err := e.process().Stat(e.path("x"))
		must(t, "stat", err)
		wantTime(t, "mtime in another process", st.Mtim, unix.Timespec{Sec: 10})
	}},
	{"P0 reading moves atime (pvc_evictor)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "atime on every read")
		for _, direct := range []int{0, unix.O_DIRECT} {
			p := e.path(fmt.Sprint(direct))
			store(t, p, pattern("x", 8192))
			setTimes(t, p, older, older)
			f := open(t, p, unix.O_RDONLY|direct, 0)
			f.read(8192)
			f.close()
			if st := stat(t, p); st.Atim.Sec == older.Sec {
				t.Errorf("with flags %#o: atime unchanged by open and read", direct)
			}
			wantTime(t, "mtime", stat(t, p).Mtim, older)
		}
	}},
}

var ownerRows = []row{
	{"P0 the creating user owns; others are refused by mode (engines under several users)", func(t *testing.T, e *env) {
		needRoot(t)
		must(t, "chmod", unix.Chmod(e.dir, 0o777))
		alice := harness.NewActor(t, &harness.User{UID: 23001, GID: 23001})
		bob := harness.NewActor(t, &harness.User{UID: 23002, GID: 23002})
		must(t, "alice writes", alice.WriteFile(e.path("a"), []byte("alice")))
		st := stat(t, e.path("a"))
		if st.Uid != 23001 || st.Gid != 23001 {
			t.Errorf("owner: got %d:%d, want 23001:23001", st.Uid, st.Gid)
		}
		wantSeen(t, bob, e.path("a"), []byte("alice"))
		wantErrno(t, "bob writes", bob.WriteFile(e.path("a"), []byte("bob")), unix.EACCES)
		wantErrno(t, "bob's W_OK", bob.Access(e.path("a"), unix.W_OK), unix.EACCES)
		must(t, "alice chmod", alice.Chmod(e.path("a"), 0o600))
		_, err := bob.Open(e.path("a"), unix.O_RDONLY, 0)
		wantErrno(t, "bob reads 0600", err, unix.EACCES)
		wantErrno(t, "bob chmod", bob.Chmod(e.path("a"), 0o666), unix.EPERM)
		must(t, "alice mkdir", alice.Mkdir(e.path("dir"), 0o755))
		wantErrno(t, "bob creates in alice's", bob.WriteFile(e.path("dir/b"), nil), unix.EACCES)
		wantErrno(t, "bob removes from alice's", bob.Rmdir(e.path("dir/none")), unix.ENOENT, unix.EACCES)
		fd, err := alice.Open(e.path("a"), unix.O_RDONLY|unix.O_NOATIME, 0)
		wantErrno(t, "O_NOATIME by the owner", err, nil)
		alice.Close(fd)
		must(t, "chown", again(func() error { return unix.Chown(e.path("a"), 23002, 23002) }))
		wantSeen(t, bob, e.path("a"), []byte("alice"))
	}},
}

func needRoot(t testing.TB) {
	t.Helper()
	if unix.Getuid() != 0 {
		harness.Skip(t, "needs root, for processes of other users")
	}
}

var statfsRows = []row{
	{"P0 statfs: 4096-byte blocks, names of 255, capacity, nothing used by evictable blocks (all evictors)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "statfs of a cache")
		var before, after unix.Statfs_t
		must(t, "statfs", unix.Statfs(e.dir, &before))
		if before.Bsize != 4096 || before.Frsize != 4096 || before.Namelen != 255 {
			t.Errorf("f_bsize %d, f_frsize %d, f_namelen %d; want 4096, 4096, 255", before.Bsize, before.Frsize, before.Namelen)
		}
		if got := int64(before.Blocks) * 4096; got != 256*mib {
			t.Errorf("f_blocks: got %d bytes, want 256 MiB", got)
		}
		if before.Ffree == 0 {
			t.Errorf("no inode free of %d", before.Files)
		}
		for i := range 10 {
			store(t, e.path(fmt.Sprint(i)), pattern(fmt.Sprint(i), 8*mib))
		}
		must(t, "statfs", unix.Statfs(e.dir, &after))
		if after.Bavail != after.Bfree {
			t.Errorf("f_bavail %d, f_bfree %d; want the same", after.Bavail, after.Bfree)
		}
		if used := 1 - float64(after.Bavail)/float64(after.Blocks); used > 0.10 {
			t.Errorf("with evictable blocks only, %.0f %% used, want about none", 100*used)
		}
	}},
	{"P0 statfs moves with pinned bytes, and back at once on unlink (SGLang evictor)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "pins")
		avail := func() int64 {
			t.Helper()
			var st unix.Statfs_t
			must(t, "statfs", unix.Statfs(e.dir, &st))
			return int64(st.Bavail) * 4096
		}
		// Handles of rows before may still be about to be released.
		harness.Poll(t, "pinned_bytes of status to be 0", func() bool {
			return e.d.Status().Tiers[0].PinnedBytes == 0
		})
		before := avail()
		store(t, e.path("x"), pattern("x", 16*mib))
		must(t, "setxattr", unix.Setxattr(e.path("x"), "user.kvfs.pinned", []byte("1"), 0))
		if got := before - avail(); got != 16*mib {
			t.Errorf("pinned 16 MiB: f_bavail fell by %d", got)
		}
		harness.Poll(t, "pinned_bytes of status to be 16 MiB", func() bool {
			return e.d.Status().Tiers[0].PinnedBytes == 16*mib
		})
		unlink(t, e.path("x"))
		if got := avail(); got != before {
			t.Errorf("after unlink: f_bavail %d, want %d", got, before)
		}
	}},
}
