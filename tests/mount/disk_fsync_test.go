package mount

import (
	"fmt"
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
