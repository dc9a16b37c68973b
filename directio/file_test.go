package directio

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFile shows that a File really is open with O_DIRECT, asked of the kernel, and
// what its methods return.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f, err := OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640)
	must(t, err)
	flags, err := unix.FcntlInt(uintptr(f.Fd()), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_DIRECT == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	must(t, f.OS().Truncate(12345))
	if info, err := os.Stat(path); err != nil || info.Size() != 12345 || f.Name() != path {
		t.Errorf("%q: %v, %v", f.Name(), info, err)
	}
	must(t, f.Close())
	if _, err := f.OS().Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Stat after Close: %v", err)
	}
	for want, open := range map[error]func() (*File, error){
		os.ErrExist:    func() (*File, error) { return OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) },
		os.ErrNotExist: func() (*File, error) { return OpenFile(path+"x", os.O_RDWR, 0) },
		unix.EISDIR:    func() (*File, error) { return OpenFile(filepath.Dir(path), os.O_RDWR, 0) },
	} {
		if f, err := open(); !errors.Is(err, want) || f != nil {
			t.Errorf("%v, want %v", err, want)
		}
	}
	// A file system, or a kind of file, without direct I/O.
	if f, err := OpenFile("/proc/self/status", os.O_RDONLY, 0); !errors.Is(err, ErrNotDirect) || f != nil {
		t.Errorf("procfs: %v", err)
	}
}

// TestProbe probes ext4, a tmpfs, which only pretends, and directories that cannot be
// used; it leaves nothing behind.
func TestProbe(t *testing.T) {
	check := func(dir, name string, direct bool) {
		t.Helper()
		r, err := Probe(dir)
		if err != nil || r.FileSystem != name || r.Direct != direct {
			t.Errorf("%s: %+v, %v", dir, r, err)
		}
		if direct && (r.MemAlignBytes < 1 || r.MemAlignBytes > Alignment || r.OffsetAlignBytes < 1 || r.OffsetAlignBytes > Alignment) {
			t.Errorf("%s: %v", dir, r)
		}
		if hint := strings.Contains(r.String(), "only a hint"); hint == direct || !strings.HasPrefix(r.String(), name) {
			t.Errorf("%s: %q", dir, r)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 1 { // ext4 has a lost+found
			t.Errorf("%s: left %v, %v", dir, left, err)
		}
	}
	if _, err := Probe(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := Probe("/proc"); err == nil {
		t.Error("Probe of procfs succeeded")
	}
	needRoot(t, "mounting")
	check(mountTmpfs(t, "size=1m"), "tmpfs", false)
	full := mountTmpfs(t, "size=4k")
	must(t, os.WriteFile(filepath.Join(full, "f"), make([]byte, 4096), 0o600))
	if _, err := Probe(full); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("full: %v", err)
	}
	ext4, _ := mountLoop(t, "ext4", 16<<20, 512, "")
	check(ext4, "ext4", true)
	must(t, unix.Mount("", ext4, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if _, err := Probe(ext4); !errors.Is(err, unix.EROFS) {
		t.Errorf("read-only: %v", err)
	}
}
