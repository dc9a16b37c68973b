package mount

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
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

// TestHTTP shows that --http answers /readyz and /status once the daemon is
// ready, until it stops, and that an address in use ends the daemon (E12).
func TestHTTP(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	// Not 127.0.0.1, where another process may take the port between its two uses.
	l, err := net.Listen("tcp", "127.97.0.1:0")
	must(t, "listen", err)
	addr := l.Addr().String()
	busy := harness.Mount(t, harness.Options{Flags: []string{"--http", addr}, ExpectFail: true})
	if busy.ExitCode != 1 || !strings.Contains(busy.Log(), "address already in use") {
		t.Errorf("address in use: exit code %d\n%s", busy.ExitCode, busy.Log())
	}
	wantUnmounted(t, busy)
	l.Close()

	d := harness.Mount(t, harness.Options{Flags: []string{"--http", addr}})
	client := &http.Client{Timeout: harness.Deadline}
	get := func(path string) string {
		t.Helper()
		reply, err := client.Get("http://" + addr + path)
		must(t, "GET "+path, err)
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		must(t, "GET "+path, err)
		if reply.StatusCode != http.StatusOK {
			t.Errorf("GET %s: got %s", path, reply.Status)
		}
		return string(body)
	}
	if got := get("/readyz"); got != "ready\n" {
		t.Errorf("/readyz: got %q", got)
	}
	var s harness.Status
	must(t, "/status", json.Unmarshal([]byte(get("/status")), &s))
	if want := d.Status(); s.Version != want.Version || s.Mount != want.Mount || len(s.Tiers) != len(want.Tiers) {
		t.Errorf("/status: got %+v, .kvfs/status has %+v", s, want)
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	if reply, err := client.Get("http://" + addr + "/readyz"); err == nil {
		reply.Body.Close()
		t.Error("/readyz answers after the stop")
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

// TestRefused shows the exit codes of a mount that cannot be right, that nothing
// is mounted then, and that the waiting reader gets the end of the file.
func TestRefused(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	full := t.TempDir()
	must(t, "write", os.WriteFile(filepath.Join(full, "file"), nil, 0o644))
	for _, c := range []struct {
		name string
		opts harness.Options
		code int
		log  string
	}{
		{"more memory than the machine has", harness.Options{MemorySize: "1000TiB"}, 3, "exceeds the memory of this machine"},
		{"copies without peers", harness.Options{Flags: []string{"--replicas", "1"}}, 3, "needs bind"},
		{"unknown variable", harness.Options{Env: []string{"KVFS_MEMORY_SISE=1GiB"}}, 3, "KVFS_MEMORY_SIZE"},
		{"directory not empty", harness.Options{Dir: full}, 4, "not empty"},
		{"no directory", harness.Options{Dir: filepath.Join(full, "file", "x")}, 4, "mount point"},
		{"unknown flag", harness.Options{Flags: []string{"--sise"}}, 2, "unknown flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "no directory" {
				_, stderr, code := harness.Kvfs(t, "mount", c.opts.Dir)
				if code != c.code || !strings.Contains(stderr, c.log) {
					t.Errorf("exit code %d, %q; want %d, %q", code, stderr, c.code, c.log)
				}
				return
			}
			c.opts.ExpectFail = true
			d := harness.Mount(t, c.opts)
			if d.ExitCode != c.code || !strings.Contains(d.Log(), c.log) {
				t.Errorf("exit code %d, want %d with %q\n%s", d.ExitCode, c.code, c.log, d.Log())
			}
			wantUnmounted(t, d)
		})
	}
}

// TestRootOfMount shows that the root has the mode and owner of the directory
// below it, and that a second daemon is refused where one lives.
func TestRootOfMount(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	if os.Getuid() != 0 {
		harness.Skip(t, "chown needs root")
	}
	dir := t.TempDir()
	must(t, "chown", os.Chown(dir, 1234, 5678))
	must(t, "chmod", os.Chmod(dir, os.ModeSticky|0o770))
	d := harness.Mount(t, harness.Options{Dir: dir})
	if st := stat(t, d.Dir); st.Mode != unix.S_IFDIR|0o1770 || st.Uid != 1234 || st.Gid != 5678 {
		t.Errorf("root: mode %#o, owner %d:%d", st.Mode, st.Uid, st.Gid)
	}
	_, stderr, code := harness.Kvfs(t, "mount", d.Dir)
	if code != 4 || !strings.Contains(stderr, "serves it already") {
		t.Errorf("second daemon: exit code %d, %q", code, stderr)
	}
	store(t, d.Path("x"), pattern("x", mib))
	wantBytes(t, d.Path("x"), pattern("x", mib))
}
