package mount

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// field follows path into doc; of a list it takes the first.
func field(doc any, path []string) any {
	for _, key := range path {
		if list, ok := doc.([]any); ok && len(list) > 0 {
			doc = list[0]
		}
		m, _ := doc.(map[string]any)
		doc = m[key]
	}
	return doc
}

// TestStatusFields shows that the status document says what happened: a block counts, an open one is pinned, a
// removed one is gone (A10).
func TestStatusFields(t *testing.T) {
	harness.KvfsOnly(t, "a status")
	d := harness.Mount(t, harness.Options{MemorySize: "128MiB"})
	store(t, d.Path("x"), pattern("x", 3*mib))
	f := open(t, d.Path("x"), unix.O_RDONLY, 0)
	s := d.Status()
	if got := field(s.Raw, []string{"mount", "dir"}); got != d.Dir {
		t.Errorf("mount.dir: got %v, want %s", got, d.Dir)
	}
	tier := s.Tiers[0]
	if tier.CapacityBytes != 128*mib || tier.Blocks != 1 || tier.UsedBytes < 3*mib || tier.PinnedBytes < 3*mib || tier.State != "online" {
		t.Errorf("one open block of 3 MiB in 128 MiB: got %+v", tier)
	}
	f.close()
	unlink(t, d.Path("x"))
	harness.Poll(t, "the memory is free", func() bool {
		tier := d.Status().Tiers[0]
		return tier.Blocks == 0 && tier.UsedBytes == 0 && tier.PinnedBytes == 0
	})
}

// TestRefused: a mount that cannot be right fails with one line and a code for the kind of failure, also in the background, and
// nothing is mounted.
func TestRefused(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	dir, ssd := t.TempDir(), harness.NewDiskDir(t, nil)
	file, full, good := filepath.Join(dir, "file"), filepath.Join(dir, "full"), filepath.Join(dir, "good")
	must(t, "file", os.WriteFile(file, []byte("x"), 0o644))
	must(t, "mkdir", os.MkdirAll(full+"/something", 0o755))
	must(t, "mkdir", os.Mkdir(good, 0o755))
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--sise", good}, 2, "unknown flag"},
		{[]string{"--memory-size=1KiB", good}, 3, "want at least 1MiB"},
		{[]string{"--memory-size=12", "-d", good}, 3, "needs a unit"},
		{[]string{"--memory-dir", file, good}, 1, file},
		{[]string{"--memory-numa=bind:1023", good}, 3, "bind:1023"},
		{[]string{"--disk=path=" + full + ",size=64MiB", good}, 1, "choose an empty directory"},
		{[]string{"--disk=path=" + ssd + ",size=64MiB", ssd}, 3, "in the directory of the SSD tier"},
		{[]string{file}, 4, file},
		{[]string{full}, 4, "not empty"},
		{[]string{"-d", dir + "/none/mnt"}, 4, dir + "/none"},
	} {
		args := append([]string{"mount", "--memory-dir", dir + "/memory", "--memory-size=64MiB"}, c.args...)
		stdout, stderr, code := harness.Kvfs(t, args...)
		if code != c.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.text) {
			t.Errorf("kvfs %q: exit code %d, %q, %q; want %d and one line with %q", c.args, code, stdout, stderr, c.code, c.text)
		}
	}
	if got := append(harness.MountPoints(dir), harness.MountPoints(ssd)...); len(got) != 0 {
		t.Errorf("left mounted: %q", got)
	}
}

// TestNotify shows that the daemon tells systemd when it is ready and when it
// stops, and that the mount answers by then (E12).
func TestNotify(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, "listen", err)
	defer conn.Close()
	receive := func() string {
		t.Helper()
		buf := make([]byte, 4096)
		conn.SetReadDeadline(time.Now().Add(harness.Deadline))
		for {
			n, err := conn.Read(buf)
			must(t, "receive", err)
			if got := string(buf[:n]); got != "WATCHDOG=1" {
				return got
			}
		}
	}
	d := harness.Mount(t, harness.Options{Env: []string{"NOTIFY_SOCKET=" + socket}})
	if got := receive(); !strings.HasPrefix(got, "READY=1\n") {
		t.Errorf("got %q, want READY=1", got)
	}
	put(t, d.Path("x"), pattern("x", mib))
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	if got := receive(); got != "STOPPING=1" {
		t.Errorf("got %q, want STOPPING=1", got)
	}
}
