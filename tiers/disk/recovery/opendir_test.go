package recovery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// TestOpenDirRefusals: what cannot be a directory of the tier is refused with a message
// that says why, and stays as it was.
func TestOpenDirRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(path string) error
		want error
		says string
	}{
		"missing parent": {func(path string) error { return os.Remove(filepath.Dir(path)) }, unix.ENOENT, "its parent"},
		"a file":         {func(path string) error { return os.WriteFile(path, nil, 0o600) }, unix.ENOTDIR, "is not a directory"},
		"foreign files": {func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "photo.jpg"), nil, 0o600))
		}, block.ErrInvalid, `holds other files, such as "photo.jpg"`},
		"another's": {func(path string) error {
			return errors.Join(os.Mkdir(path, 0o777), os.Chown(path, 12345, 12345))
		}, unix.EPERM, "belongs to uid 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mnt", "d")
			must(t, os.Mkdir(filepath.Dir(path), 0o700))
			if err := tc.make(path); name == "another's" && os.Geteuid() != 0 {
				t.Skip("chown needs root")
			} else if err != nil {
				t.Fatal(err)
			}
			d, err := Open(path, Options{Create: true, AllowTmpfs: true})
			if err == nil {
				d.Close()
			}
			var why *DirError
			if !errors.As(err, &why) || why.Dir != path || !errors.Is(err, tc.want) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(why.Why, tc.says) {
				t.Errorf("got %q, want it to say %q", why.Why, tc.says)
			}
			if _, err := os.Lstat(filepath.Join(path, format.SuperName)); err == nil {
				t.Error("kvfs-disk was made")
			}
		})
	}
}

// TestOpenDirTmpfs: memory is no disk.
func TestOpenDirTmpfs(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "kvfs-test-*")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skipf("/dev/shm is not a tmpfs: %v", err)
	}
	path := filepath.Join(dir, "d")
	_, err = Open(path, Options{Create: true})
	var why *DirError
	if !errors.As(err, &why) || !strings.HasPrefix(why.Why, "is on tmpfs, which is memory") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestOpenDirReadOnly: a file system mounted read-only, by a bind mount of the test's own.
func TestOpenDirReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("bind mount needs root: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	must(t, os.Mkdir(filepath.Join(dir, "there"), 0o700))
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Skipf("remount needs root: %v", err)
	}
	for _, name := range []string{"there", "absent"} {
		_, err := Open(filepath.Join(dir, name), Options{Create: true, AllowTmpfs: true})
		var why *DirError
		if !errors.As(err, &why) || !errors.Is(err, unix.EROFS) || !strings.Contains(why.Why, "read-only") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestOpenDirNotWritable: permissions count for a user who is not root.
func TestOpenDirNotWritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	must(t, os.Mkdir(dir, 0o500))
	uid := os.Geteuid()
	if uid == 0 { // the owner without root's rights, who must reach it
		uid = 12345
		above := filepath.Dir(dir)
		must(t, errors.Join(os.Chown(dir, uid, uid), os.Chmod(above, 0o755), os.Chmod(filepath.Dir(above), 0o755)))
	}
	out, err := helper(t, "open", dir, uid).CombinedOutput()
	if err == nil || !strings.Contains(string(out), dir+": is not writable (mode 0500): permission denied") {
		t.Errorf("got %v: %s", err, out)
	}
}

// TestOpenDirExtras: lost+found and what a crash left are no obstacle, a directory open to
// all and files of others next to a superblock get a warning.
func TestOpenDirExtras(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	must(t, errors.Join(os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700), os.Chmod(dir, 0o777)))
	core, logs := observer.New(zap.WarnLevel)
	opts := Options{Create: true, AllowTmpfs: true, Logger: zap.New(core)}
	for i := range 2 {
		d, err := Open(dir, opts)
		must(t, err)
		if d.Fresh != (i == 0) {
			t.Errorf("open %d: fresh %v", i, d.Fresh)
		}
		for _, name := range []string{"photo.jpg", format.IndexTmpName} {
			must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
		must(t, d.Close())
	}
	if n := logs.FilterMessageSnippet("every user can write").Len(); n != 2 {
		t.Errorf("%d warnings about the mode", n)
	}
	if n := logs.FilterMessageSnippet("not ours").Len(); n != 1 {
		t.Errorf("%d warnings about photo.jpg", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "photo.jpg")); err != nil {
		t.Error(err)
	}
	d := openTest(t, dir)
	if _, err := os.Stat(d.Join(format.IndexTmpName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", format.IndexTmpName, err)
	}
}

// TestOpenDirBusy: a second opener, in another process and in this one, is told who has the
// directory, and so is Check.
func TestOpenDirBusy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	cmd := helper(t, "hold", dir, os.Geteuid())
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	wantBusy := func(err error) {
		t.Helper()
		var busy *BusyError
		if !errors.As(err, &busy) || busy.Dir != dir || !errors.Is(err, ErrBusy) {
			t.Fatalf("got %v", err)
		}
		if busy.PID != cmd.Process.Pid {
			t.Errorf("got process %d, want %d", busy.PID, cmd.Process.Pid)
		}
	}
	_, err = Open(dir, Options{Create: true, AllowTmpfs: true})
	wantBusy(err)
	for _, repair := range []bool{false, true} {
		_, err = Check(context.Background(), dir, CheckOptions{Repair: repair})
		wantBusy(err)
	}
	must(t, cmd.Process.Kill())
	cmd.Wait()
	d := openTest(t, dir) // the lock went with the process
	if _, err := Open(dir, Options{AllowTmpfs: true}); !errors.Is(err, ErrBusy) {
		t.Errorf("second open in one process: got %v", err)
	}
	must(t, d.Close())
	openTest(t, dir)
}

// helper is this test binary as another process, which runs TestOpenDirHelper.
func helper(t *testing.T, what, dir string, uid int) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestOpenDirHelper$", "-test.v=false")
	cmd.Env = append(os.Environ(), "KVFS_TEST_OPENDIR="+what+":"+dir)
	if uid != os.Geteuid() {
		// That user may be unable to run the binary: the child gives up the rights.
		cmd.Env = append(cmd.Env, fmt.Sprintf("KVFS_TEST_UID=%d", uid))
	}
	return cmd
}

// TestOpenDirHelper is the child of other tests and does nothing by itself.
func TestOpenDirHelper(t *testing.T) {
	what, dir, ok := strings.Cut(os.Getenv("KVFS_TEST_OPENDIR"), ":")
	if !ok {
		return
	}
	if uid := os.Getenv("KVFS_TEST_UID"); uid != "" {
		var n int
		fmt.Sscan(uid, &n)
		must(t, syscall.Setreuid(-1, n))
	}
	d, err := Open(dir, Options{Create: true, AllowTmpfs: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if what == "hold" {
		fmt.Println("open")
		io.Copy(io.Discard, os.Stdin) // until the parent is done
	}
	d.Close()
	os.Exit(0)
}

// TestFindLock: lines of /proc/locks, the device first, the inode alone second.
func TestFindLock(t *testing.T) {
	const list = `1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 12 00:1f:77 0 EOF
2: -> FLOCK  ADVISORY  WRITE 13 fe:01:77 0 EOF
3: FLOCK  ADVISORY  READ 14 fe:01:77 0 EOF
4: FLOCK  ADVISORY  WRITE 15 fe:01:77 0 EOF
5: FLOCK  ADVISORY  WRITE 16 fe:01:78 0 EOF
`
	for _, tc := range []struct {
		dev   string
		inode uint64
		want  int
	}{{"fe:01", 77, 15}, {"00:1f", 77, 12}, {"fe:01", 78, 16}, {"fe:09", 78, 16}, {"fe:01", 7, 0}} {
		if got := findLock(bufio.NewScanner(strings.NewReader(list)), tc.dev, tc.inode); got != tc.want {
			t.Errorf("%s:%d: got %d, want %d", tc.dev, tc.inode, got, tc.want)
		}
	}
}

// TestSuperblockCopies: updates alternate between the copies, so that a torn write of
// the one leaves the other; with both damaged the directory is refused, and the
// error names what repairs it.
func TestSuperblockCopies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	d := openTest(t, dir)
	for day := range int64(6) {
		before, err := os.ReadFile(d.Join(format.SuperName))
		must(t, err)
		must(t, d.SetWritten(day, 100*day))
		after, err := os.ReadFile(d.Join(format.SuperName))
		must(t, err)
		at := d.mu.at
		other := (1 - at) * format.PageBytes
		if string(before[other:other+format.PageBytes]) != string(after[other:other+format.PageBytes]) {
			t.Fatalf("day %d: both copies changed", day)
		}
		for _, torn := range []int{0, 1, 512, 4095} { // so much of the write arrived
			b := append([]byte(nil), after...)
			copy(b[at*format.PageBytes+torn:(at+1)*format.PageBytes], before[at*format.PageBytes+torn:])
			must(t, os.WriteFile(d.Join(format.SuperName), b, 0o600))
			st, err := readSuper(d.file)
			if err != nil || st.super.Day < day-1 || st.super.UUID != d.Superblock().UUID {
				t.Errorf("day %d, torn at %d: got %+v, %v", day, torn, st, err)
			}
		}
		must(t, os.WriteFile(d.Join(format.SuperName), after, 0o600))
	}
	want := d.Superblock()
	must(t, d.Close())
	d = openTest(t, dir)
	if got := d.Superblock(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	must(t, d.Close())
	for at := range int64(2) {
		patch(t, filepath.Join(dir, format.SuperName), at*format.PageBytes+20, func(b []byte) { b[0]++ }, 1)
	}
	_, err := Open(dir, Options{Create: true, AllowTmpfs: true})
	var bad *SuperblockError
	if !errors.As(err, &bad) || !errors.Is(err, block.ErrCorrupt) || !strings.Contains(bad.Error(), "kvfs fsck --repair "+dir) {
		t.Errorf("got %v", err)
	}
}

// TestSuperblockLost: where slabs are, an absent or empty kvfs-disk is a loss, not a new
// directory; where none are, it is one that a crash left while it was made.
func TestSuperblockLost(t *testing.T) {
	for _, lose := range []func(path string) error{
		os.Remove,
		func(path string) error { return os.Truncate(path, 0) },
		func(path string) error { return os.WriteFile(path, make([]byte, 2*format.PageBytes), 0o600) },
	} {
		dir := filepath.Join(t.TempDir(), "d")
		d := openTest(t, dir)
		must(t, errors.Join(lose(d.Join(format.SuperName)), d.Close()))
		d = openTest(t, dir)
		plantAll(t, d)
		must(t, errors.Join(lose(d.Join(format.SuperName)), d.Close()))
		_, err := Open(dir, Options{Create: true, AllowTmpfs: true})
		var bad *SuperblockError
		if !errors.As(err, &bad) {
			t.Errorf("got %v", err)
		}
	}
}

// TestPlace shows when a directory counts as being on another file system than before: by its uuid if it
// has one, else by the mount point.
func TestPlace(t *testing.T) {
	xfs, root := Place{"/mnt/a", "xfs", "1"}, Place{"/", "ext4", "9"}
	for _, row := range []struct {
		now, was Place
		same     bool
	}{
		{xfs, xfs, true},
		{Place{"/mnt/b", "xfs", "1"}, xfs, true}, // mounted elsewhere
		{Place{"/mnt/a", "xfs", "2"}, xfs, false},
		{root, xfs, false},
		{Place{"/mnt/a", "nfs", ""}, Place{"/mnt/a", "nfs", ""}, true},
		{Place{"/mnt", "nfs", ""}, Place{"/mnt/a", "nfs", ""}, false},
	} {
		if got := row.now.same(row.was); got != row.same {
			t.Errorf("%v after %v: got %v", row.now, row.was, got)
		}
	}
	dir, state := t.TempDir(), t.TempDir()
	o := Options{Create: true, SlabBytes: 1 << 20, StateDir: state}
	for _, file := range o.placeFiles(dir) {
		must(t, writePlace(file, placeRecord{dir, Place{"/mnt/a", "xfs", "1"}}))
		_, err := Open(dir, o)
		if want := "Mount it: mount /mnt/a"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: got %v, want %q", file, err, want)
		}
		must(t, os.Remove(file))
	}
	must(t, CheckPlace(filepath.Join(dir, "absent", "too"), o))
}
