package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// crashName is a name with one writer, and what that writer knows of it.
type crashName struct {
	path      string
	inPlace   bool         // written in place, else by temp and rename
	version   uint64       // of the last store or unlink that was begun
	committed uint64       // of the last that succeeded
	gone      bool         // that one was an unlink
	attempted atomic.Int64 // version, for readers
}

// crashContent returns the bytes of a version: its number, then a pattern of a
// length that follows from it too.
func crashContent(path string, version uint64) []byte {
	n := 4096 + int(version*7919%500)*1001
	name := fmt.Sprintf("%s %d", path, version)
	b := make([]byte, 8, 8+n)
	binary.LittleEndian.PutUint64(b, version)
	return append(b, pattern(name, n)...)
}

func crashRead(t *testing.T, n *crashName) error {
	b, err := os.ReadFile(n.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if v, ok := wholeVersion(n.path, b); !ok || v > uint64(n.attempted.Load()) {
		t.Errorf("reader: %s: %d bytes that are no version (%d)", filepath.Base(n.path), len(b), v)
	}
	return nil
}

func wholeVersion(path string, b []byte) (uint64, bool) {
	if len(b) < 8 {
		return 0, false
	}
	v := binary.LittleEndian.Uint64(b)
	return v, bytes.Equal(b, crashContent(path, v))
}

// wantDead fails unless err is what a dead mount answers.
func wantDead(t *testing.T, who string, err error) {
	errno, _ := errors.AsType[syscall.Errno](err)
	switch errno {
	case unix.ENOTCONN, unix.ECONNABORTED, unix.EIO, unix.ENODEV:
	default:
		t.Errorf("%s: %v", who, err)
	}
}

// TestKilledThenRestarted is a crash without load: all that was committed is
// there with its attributes, what was not is not, and there is one mount.
func TestKilledThenRestarted(t *testing.T) {
	harness.KvfsOnly(t, "warm restart")
	d := harness.Mount(t, harness.Options{})
	mkdir(t, d.Path("group"))
	mkdir(t, d.Path("group/empty"))
	mkdir(t, d.Path("group/a"))
	for i := range 50 {
		p := d.Path("group/a", fmt.Sprint(i))
		store(t, p, pattern(p, 10000*i))
		setTimes(t, p, older, unix.Timespec{Sec: int64(2000 + i), Nsec: 7})
	}
	first := d.Path("group/a/1")
	must(t, "chmod", unix.Chmod(first, 0o600))
	must(t, "chown", unix.Chown(first, 4242, 4243))
	must(t, "setxattr", unix.Setxattr(first, "user.kvfs.pinned", []byte("1"), 0))
	long := d.Path("group", strings.Repeat("\xfe", 255))
	put(t, long, pattern("long", 5000))
	put(t, d.Path("group/gone"), []byte("x"))
	unlink(t, d.Path("group/gone"))
	half := open(t, d.Path("group/half"), unix.O_WRONLY|unix.O_CREAT, 0o644)
	half.write(pattern("half", mib))
	rename(t, d.Path("group/a/49"), d.Path("group/moved"))

	d.Kill()
	var st unix.Stat_t
	wantErrno(t, "stat of the dead mount", unix.Stat(d.Path("group"), &st), unix.ENOTCONN)
	half.closed = true
	unix.Close(half.fd)
	d.Restart()

	if got := len(harness.MountPoints(d.Dir)); got != 1 {
		t.Errorf("%d mounts at the mount point, want 1", got)
	}
	for i := range 49 {
		p := d.Path("group/a", fmt.Sprint(i))
		wantBytes(t, p, pattern(p, 10000*i))
		wantTime(t, "mtime", stat(t, p).Mtim, unix.Timespec{Sec: int64(2000 + i), Nsec: 7})
	}
	wantBytes(t, d.Path("group/moved"), pattern(d.Path("group/a/49"), 10000*49))
	wantBytes(t, long, pattern("long", 5000))
	if st := stat(t, first); st.Mode != unix.S_IFREG|0o600 || st.Uid != 4242 || st.Gid != 4243 {
		t.Errorf("attributes: got %#o %d:%d, want 0100600 4242:4243", st.Mode, st.Uid, st.Gid)
	}
	if got := getxattr(t, first, "user.kvfs.pinned"); got != "1" {
		t.Errorf("pinned: got %q, want 1", got)
	}
	if st := stat(t, d.Path("group/empty")); st.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("empty directory: mode %#o", st.Mode)
	}
	for _, name := range []string{"gone", "half", "a/49"} {
		wantAbsent(t, harness.Self(), d.Path("group", name))
	}
}
