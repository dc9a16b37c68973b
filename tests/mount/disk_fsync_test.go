package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// crashAll kills the daemon, throws the memory away and starts it again: only
// what is on disk is left.
func crashAll(d *harness.Daemon) {
	d.Kill()
	d.DropMemory()
	d.Restart()
}

// TestDiskFsync shows the promise of fsync: when it returns, the block is there after a crash that takes the memory
// with it. Of a block that is still being written, the bytes so far are there (A46).
func TestDiskFsync(t *testing.T) {
	d := diskMount(t, harness.Options{})
	fsync := func(t *testing.T, f *file) {
		t.Helper()
		must(t, "fsync", again(func() error { return unix.Fsync(f.fd) }))
	}
	for i, c := range []struct {
		name string
		do   func(t *testing.T, p string) (want []byte)
	}{
		{"of a committed block", func(t *testing.T, p string) []byte {
			store(t, p, pattern(p, 4*mib))
			fsyncPath(t, p)
			return pattern(p, 4*mib)
		}},
		{"fdatasync", func(t *testing.T, p string) []byte {
			store(t, p, pattern(p, mib))
			f := open(t, p, unix.O_RDONLY, 0)
			must(t, "fdatasync", again(func() error { return unix.Fdatasync(f.fd) }))
			f.close()
			return pattern(p, mib)
		}},
		{"of the temporary name, then rename", func(t *testing.T, p string) []byte {
			f := open(t, p+".tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
			f.write(pattern(p, 3*mib+5))
			fsync(t, f)
			f.close()
			rename(t, p+".tmp", p)
			return pattern(p, 3*mib+5)
		}},
		{"in place, before close", func(t *testing.T, p string) []byte {
			f := open(t, p, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
			f.write(pattern(p, mib)[:500_000])
			fsync(t, f)
			f.write(pattern(p, mib)[500_000:])
			fsync(t, f)
			return pattern(p, mib)
		}},
		{"in place, after close", func(t *testing.T, p string) []byte {
			put(t, p, pattern(p, 77_777))
			fsyncPath(t, p)
			return pattern(p, 77_777)
		}},
		{"of a second version in place", func(t *testing.T, p string) []byte {
			put(t, p, pattern("one", mib))
			fsyncPath(t, p)
			f := open(t, p, unix.O_WRONLY|unix.O_TRUNC, 0)
			f.write(pattern("two", 2*mib))
			fsync(t, f)
			f.close()
			fsyncPath(t, p)
			return pattern("two", 2*mib)
		}},
		{"of a patched block", func(t *testing.T, p string) []byte {
			store(t, p, pattern(p, mib))
			f := open(t, p, unix.O_RDWR, 0)
			f.pwrite([]byte("patched"), 1000)
			f.close()
			fsyncPath(t, p)
			want := pattern(p, mib)
			copy(want[1000:], "patched")
			return want
		}},
		{"of a renamed block", func(t *testing.T, p string) []byte {
			store(t, p+"-before", pattern(p, mib))
			fsyncPath(t, p+"-before")
			rename(t, p+"-before", p)
			fsyncPath(t, p)
			return pattern(p, mib)
		}},
		{"of an empty block", func(t *testing.T, p string) []byte {
			store(t, p, nil)
			fsyncPath(t, p)
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := d.Path(fmt.Sprint("block", i))
			want := c.do(t, p)
			d.Kill()
			d.DropMemory()
			d.Restart()
			wantBytes(t, p, want)
		})
	}
}

// TestDiskFsyncRemoval shows that what was removed before an fsync of its
// directory does not come back after a crash.
func TestDiskFsyncRemoval(t *testing.T) {
	d := diskMount(t, harness.Options{})
	mkdir(t, d.Path("dir"))
	p := d.Path("dir", "x")
	store(t, p, pattern(p, mib))
	store(t, d.Path("dir", "y"), pattern("y", mib))
	fsyncPath(t, p)
	fsyncPath(t, d.Path("dir", "y"))
	unlink(t, p)
	dir := open(t, d.Path("dir"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, "fsync of the directory", again(func() error { return unix.Fsync(dir.fd) }))
	dir.close()
	crashAll(d)
	wantAbsent(t, harness.Self(), p)
	wantBytes(t, d.Path("dir", "y"), pattern("y", mib))
}

// TestDiskFsyncOffline shows that an fsync that cannot keep its promise fails and does not hang, and that the block
// is unharmed. The device cannot take new data because the file system below it is full.
func TestDiskFsyncOffline(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	l, fill := failingDevice(t)
	d := diskMount(t, harness.Options{Disk: "64MiB", DiskDir: l.Dir, Flags: []string{"--disk-slab-size", "4MiB"}})
	store(t, d.Path("x"), pattern("x", 100_000))
	fsyncPath(t, d.Path("x"))
	fill()
	p := d.Path("y")
	store(t, p, pattern(p, 20*mib))
	f := open(t, p, unix.O_RDONLY, 0)
	within(t, "fsync returns", func() {
		err := again(func() error { return unix.Fsync(f.fd) })
		wantErrno(t, "fsync of a block that cannot be stored", err, unix.EIO, unix.ENOSPC)
	})
	wantBytes(t, p, pattern(p, 20*mib))
	wantBytes(t, d.Path("x"), pattern("x", 100_000))
}

// failingDevice mounts an ext4 on a sparse file on a small tmpfs. After fill has been called, its device fails writes
// to new places.
func failingDevice(t *testing.T) (l *harness.LoopFS, fill func()) {
	t.Helper()
	needRoot(t)
	small := t.TempDir()
	must(t, "mount tmpfs", unix.Mount("small", small, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { unix.Unmount(small, unix.MNT_DETACH) })
	l = harness.MountLoop(t, harness.LoopOptions{SizeBytes: 256 * mib, Backing: small})
	return l, func() {
		f, err := os.Create(filepath.Join(small, "ballast"))
		must(t, "create", err)
		defer f.Close()
		var size int64
		// Again where the device has taken some of the room meanwhile.
		harness.Poll(t, "nothing is free below the device", func() bool {
			var vfs unix.Statfs_t
			must(t, "statfs", unix.Statfs(small, &vfs))
			n := int64(vfs.Bfree) * int64(vfs.Bsize)
			if n == 0 {
				return true
			}
			err := again(func() error { return unix.Fallocate(int(f.Fd()), 0, size, n) })
			wantErrno(t, "fallocate", err, nil, unix.ENOSPC)
			if err == nil {
				size += n
			}
			return false
		})
	}
}
