package publish

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestIPCNoSocket shows that what is at the path of an ipc endpoint and is no socket is left alone, also a link to a socket that
// nobody serves. Such a socket, of a killed process, is bound again; one in use is not.
func TestIPCNoSocket(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	check(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	for name, make := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink(dead, path) },
	} {
		path := filepath.Join(dir, name)
		check(t, make(path))
		before, _ := os.Lstat(path)
		p, err := Open(t.Context(), Options{Log: newTestLog(10), Bind: "ipc://" + path})
		if err == nil {
			p.Close(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("%s: got %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: changed: %v", name, err)
		}
	}
	open(t, Options{Log: newTestLog(10), Bind: "ipc://" + dead})
	if _, err := Open(t.Context(), Options{Log: newTestLog(10), Bind: "ipc://" + dead}); err == nil {
		t.Error("a socket in use was bound")
	}
}
