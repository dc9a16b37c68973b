package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestRootOf shows that the root takes mode and owner from the mount point.
func TestRootOf(t *testing.T) {
	dir := t.TempDir()
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 1234, 5678
		must(t, os.Chown(dir, uid, gid))
	}
	must(t, os.Chmod(dir, os.ModeSticky|0o750))
	got, err := rootOf(dir)
	must(t, err)
	if got.mode != 0o1750 || int(got.uid) != uid || int(got.gid) != gid {
		t.Errorf("got mode %#o, owner %d:%d", got.mode, got.uid, got.gid)
	}
	if _, err := rootOf(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: got %v", err)
	}
}

// TestMountPoint shows which directories can be mounted on.
func TestMountPoint(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	empty := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(empty, link))
	want, err := filepath.EvalSymlinks(empty)
	must(t, err)
	for _, dir := range []string{empty, empty + "/", filepath.Join(empty, "..", filepath.Base(empty)), link} {
		if got, err := mountPoint(dir, zap.NewNop()); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", dir, got, err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	for dir, text := range map[string]string{
		file:                       "not a directory",
		filepath.Dir(file):         "not empty (file)",
		filepath.Join(empty, "no"): "no does not exist: to make it, run: mkdir -p ",
	} {
		if _, err := mountPoint(dir, zap.NewNop()); err == nil || !strings.Contains(err.Error(), text) || !strings.HasPrefix(err.Error(), "mount point") {
			t.Errorf("%s: got %v, want %q", dir, err, text)
		}
	}
}

// TestMountRefuses shows that a mount that cannot be right fails before anything
// is made, with the code for it.
func TestMountRefuses(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	dir := t.TempDir()
	err := (Program{}).Mount(context.Background(), loadConfig(t, `{"memory": {"size": "1000TiB"}}`), dir, 0, NewReadiness(-1))
	if exit.Code(err) != exit.Config || !strings.Contains(err.Error(), "memory.size") {
		t.Errorf("more than the machine has: code %d, %v", exit.Code(err), err)
	}
	err = (Program{}).Mount(context.Background(), loadConfig(t, `{"memory": {"size": "64MiB"}}`), filepath.Join(dir, "absent"), 0, NewReadiness(-1))
	if exit.Code(err) != exit.Mount || !strings.Contains(err.Error(), "run: mkdir -p ") {
		t.Errorf("no directory: code %d, %v", exit.Code(err), err)
	}
}
