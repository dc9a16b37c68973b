package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/fs/device"
)

// mountDead mounts a FUSE file system of the given type without a daemon and
// returns its connection: closed, it leaves a stale mount. The test is skipped
// where mounting is not allowed.
func mountDead(t *testing.T, dir, fsType string) *os.File {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() { dev.Close() })
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", dev.Fd(), os.Getuid(), os.Getgid())
	if err := unix.Mount("kvfs", dir, fsType, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dev
}

// mountDir makes a directory whose name the mount table has to escape.
func mountDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), `a b\c`)
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

// TestUmountStale shows that the mount of a dead daemon is recognised and gone when umount returns, through a symbolic
// link and although it is busy, and that a second umount says that there is nothing.
func TestUmountStale(t *testing.T) {
	dir := mountDir(t)
	dev := mountDead(t, dir, mounts.Type)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0) // asks no daemon, and keeps the mount busy
	must(t, err)
	defer unix.Close(fd)
	dev.Close()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(filepath.Dir(dir), link))
	if code, _, errs := runCLI("status", dir); code != exit.NotMount || !strings.Contains(errs, "is dead. kvfs mount "+dir+", with the settings it had, starts it again with its blocks. kvfs umount ") {
		t.Errorf("status: exit code %d, stderr %q", code, errs)
	}
	if code, out, errs := runCLI("umount", filepath.Join(link, filepath.Base(dir))); code != exit.OK || out != "" || errs != "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	if m, err := device.TopMount(dir); m != nil || err != nil {
		t.Errorf("still there: %+v, %v", m, err)
	}
	if code, _, _ := runCLI("umount", dir); code != exit.NotMount {
		t.Errorf("second umount: exit code %d", code)
	}
}

// TestUmountWaits shows that umount returns when the process that served the mount has ended, too, and one that was taking it
// over, or else says that it still ends; and that it does not wait for it with --lazy.
func TestUmountWaits(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	const ending = "kvfs: %s is unmounted; its daemon (process %d) is still ending\n"
	for _, tc := range []struct{ name, flag, stderr string }{
		{"ending", "--timeout=0", ending},
		{"lazy", "--lazy", ""},
		{"ends", "--timeout=1h", ""},
		{"takeover", "--timeout=0", ending},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := mountDir(t)
			mountDead(t, dir, mounts.Type)
			m, err := device.TopMount(dir)
			if m == nil || err != nil {
				t.Fatal(m, err)
			}
			mark, err := handoff.NewMark(mounts.MarkPath(m), m.ID, m.Mountpoint)
			must(t, err)
			server := exec.Command("flock", "--shared", mounts.MarkPath(m), "cat") // ends with its input
			input, err := server.StdinPipe()
			must(t, err)
			output, err := server.StdoutPipe()
			must(t, errors.Join(err, server.Start()))
			defer func() { input.Close(); _ = server.Wait(); os.Remove(mounts.MarkPath(m)) }()
			input.Write([]byte{'\n'})
			_, err = output.Read(make([]byte, 1)) // it has the lock now
			must(t, errors.Join(err, mark.Close()))
			pid := server.Process.Pid
			if tc.name == "takeover" { // the process in the mark has ended
				before := exec.Command("true")
				must(t, before.Run())
				pid = before.Process.Pid
			}
			must(t, os.WriteFile(mounts.MarkPath(m), fmt.Appendf(nil, "%d %d %q\n", pid, m.ID, m.Mountpoint), 0o600))
			if tc.flag == "--timeout=1h" {
				go func() { // ends when the mount is gone, or with the test
					_ = mounts.WaitGone(t.Context(), m)
					input.Close()
				}()
			}
			want := tc.stderr
			if want != "" {
				want = fmt.Sprintf(want, dir, pid)
			}
			if code, out, errs := runCLI("umount", tc.flag, dir); code != exit.OK || out != "" || errs != want {
				t.Errorf("exit code %d, stdout %q, stderr %q, want %q", code, out, errs, want)
			}
		})
	}
}

// TestUmountForeign shows that other FUSE mounts are left alone.
func TestUmountForeign(t *testing.T) {
	dir := mountDir(t)
	mountDead(t, dir, "fuse.other").Close()
	code, _, errs := runCLI("umount", dir)
	if code != exit.NotMount || !strings.HasSuffix(errs, "is not a kvfs mount: its type is fuse.other\n") {
		t.Errorf("exit code %d, stderr %q", code, errs)
	}
	if m, err := device.TopMount(dir); m == nil || err != nil {
		t.Errorf("it is gone: %v", err)
	}
}
