package harness

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestMountLoop shows for each file system that it has the requested sector size, that it can be
// filled, made read-only, unmounted and mounted again, that reads beyond the end of a truncated
// backing file fail, and that nothing is left of it.
func TestMountLoop(t *testing.T) {
	for _, c := range []struct {
		name, fstype string
		sector       int
	}{
		{"ext4", "ext4", 512},
		{"xfs with 512-byte sectors", "xfs", 512},
		{"xfs with 4096-byte sectors", "xfs", 4096},
		{"btrfs", "btrfs", 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l *LoopFS
			t.Run("use", func(t *testing.T) {
				l = MountLoop(t, LoopOptions{Type: c.fstype, SectorBytes: c.sector})
				useLoop(t, l, c.sector)
			})
			if l == nil {
				Skip(t, "loop devices: skipped inside")
			}
			Poll(t, l.Device+" is detached from "+l.Backing, func() bool {
				b, err := os.ReadFile("/sys/block/" + filepath.Base(l.Device) + "/loop/backing_file")
				return err != nil || !strings.HasPrefix(string(b), l.Backing)
			})
			if left := MountPoints(l.Dir); len(left) != 0 {
				t.Errorf("still mounted: %q", left)
			}
			if _, err := os.Stat(filepath.Dir(l.Dir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory is still there: %v", err)
			}
		})
	}
}

func useLoop(t *testing.T, l *LoopFS, sector int) {
	if got := FSType(l.Dir); got != l.opts.Type {
		t.Errorf("mounted: %q, want %s", got, l.opts.Type)
	}
	dev, err := os.Open(l.Device)
	if err != nil {
		t.Fatal(err)
	}
	got, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKSSZGET)
	dev.Close()
	if err != nil || got != sector {
		t.Errorf("sector: got %d, %v; want %d", got, err, sector)
	}

	data := bytes.Repeat([]byte("loop device "), 1<<20)
	path := filepath.Join(l.Dir, "file")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	l.Remount()
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, data) {
		t.Errorf("after a remount: %d bytes, %v", len(b), err)
	}

	empty := l.Fill(1 << 20)
	if err := os.WriteFile(path+"2", data, 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write to the full file system: got %v, want ENOSPC", err)
	}
	os.Remove(path + "2")
	empty()

	l.ReadOnly(true)
	if err := os.WriteFile(path+"3", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to the read-only file system: got %v, want EROFS", err)
	}
	l.ReadOnly(false)
	if err := os.WriteFile(path+"3", nil, 0o644); err != nil {
		t.Errorf("write to the file system made writable: %v", err)
	}

	thaw := l.Freeze()
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(path+"4", data, 0o644) }() // ends after the thaw
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, data) {
		t.Errorf("read of the frozen file system: %d bytes, %v", len(b), err)
	}
	select {
	case err := <-written:
		t.Errorf("write to the frozen file system ended: %v", err)
	default:
	}
	thaw()
	if err := <-written; err != nil {
		t.Errorf("write after the thaw: %v", err)
	}

	// All data of the file is beyond 64 KiB; the superblocks are before.
	l.Truncate(64 << 10)
	if err := evictFile(path); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err == nil && bytes.Equal(b, data) {
		t.Error("the file can be read after its device was truncated")
	}
}

// evictFile takes the pages of a file out of the page cache.
func evictFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // even that can no longer be read
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// TestLaunch shows that the restrictions of a Launch hold in the program that it becomes.
func TestLaunch(t *testing.T) {
	if os.Getuid() != 0 {
		Skip(t, "a seccomp filter needs root")
	}
	file := filepath.Join(t.TempDir(), "file")
	args := Launch{MaxFileBytes: 1 << 20, NoIOUring: true}.command(
		[]string{"/bin/sh", "-c", "grep ^Seccomp: /proc/self/status; echo $" + helperEnv + "; head -c 3000000 /dev/zero >" + file})
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"="+launchHelper)
	out, err := cmd.CombinedOutput()
	if !strings.HasPrefix(string(out), "Seccomp:\t2\n\n") {
		t.Errorf("got %q, %v; want a filter and a clean environment", out, err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 1<<20 {
		t.Errorf("file: %v, %v; want 1 MiB", info, err)
	}
	if got := (Launch{}).command([]string{"x"}); len(got) != 1 {
		t.Errorf("no restriction: got %q, want the command itself", got)
	}
}

// TestCopyDir shows that a copy has the same bytes and the same holes.
func TestCopyDir(t *testing.T) {
	from, to := NewDiskDir(t, nil), NewDiskDir(t, nil)
	f, err := os.Create(filepath.Join(from, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(32 << 20); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, 5<<20 + 7, 20 << 20} {
		if _, err := f.WriteAt(bytes.Repeat([]byte("data"), 1<<18), off); err != nil {
			t.Fatal(err)
		}
	}
	CopyDir(t, from, to)
	want, _ := os.ReadFile(filepath.Join(from, "file"))
	got, err := os.ReadFile(filepath.Join(to, "file"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs: %d bytes, %v; want %d", len(got), err, len(want))
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(to, "file"), &st); err != nil || st.Blocks*512 > 4<<20 {
		t.Errorf("the copy takes %d bytes on disk, %v; want the data only", st.Blocks*512, err)
	}
}
