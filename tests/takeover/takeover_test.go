package takeover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestTakeover shows a takeover. Memory holds the only copy. Afterwards all blocks are there,
// byte by byte, and pinned ones still are. Readers go on; a writer learns that its write is
// lost; systemd learns the new process. The mount then stops like any other.
func TestTakeover(t *testing.T) {
	s := newSite(t)
	first := s.mount()
	const blocks = 200
	s.write(0, blocks)
	before := s.status()
	if before.Mount.Epoch != 1 || before.Mount.ReadPath != "passthrough" {
		harness.Skip(t, "no passthrough: %+v", before.Mount)
	}
	if info, err := os.Stat(before.Mount.Takeover); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket at which it begins: %v, %v", info, err)
	}
	if _, stderr, code := harness.Kvfs(t, "pin", s.path(3)); code != 0 {
		t.Errorf("pin: %s", stderr)
	}
	const attr, value = "user.vllm.kv_crc32c", "\x01\x00\xff\x02"
	must(t, unix.Setxattr(s.path(5), attr, []byte(value), 0))
	if _, stderr, code := harness.Kvfs(t, "quota", "set", "--user", "0", "--pinned", "50MiB", s.dir); code != 0 {
		t.Errorf("quota of pins: %s", stderr)
	}
	quotas, stderr, code := harness.Kvfs(t, "quota", "set", "--user", "0", "100MiB", s.dir)
	if code != 0 || !strings.Contains(quotas, "100.0 MiB") || !strings.Contains(quotas, "50.0 MiB") {
		t.Errorf("quota: %s%s", quotas, stderr)
	}
	reading, err := os.Open(s.path(7))
	must(t, err)
	defer reading.Close()
	writing, err := os.Create(filepath.Join(s.dir, "g", "half"))
	must(t, err)
	if _, err := writing.Write(block(1)); err != nil {
		t.Fatal(err)
	}

	socket := filepath.Join(s.base, "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	defer notify.Close()
	second := s.begin([]string{"NOTIFY_SOCKET=" + socket}, "--takeover")
	second.wait(t)
	first.end()
	if first.code != 0 {
		t.Errorf("the first daemon ended with %d", first.code)
	}
	told := func() string { // to systemd
		t.Helper()
		message := make([]byte, 4096)
		notify.SetReadDeadline(time.Now().Add(harness.Deadline))
		for {
			n, err := notify.Read(message)
			if err != nil {
				t.Fatalf("systemd was told nothing: %v", err)
			}
			if got := string(message[:n]); got != "WATCHDOG=1" {
				return got
			}
		}
	}
	if got, want := told(), fmt.Sprintf("MAINPID=%d", second.pid); !strings.HasPrefix(got, "READY=1\n") || !strings.Contains(got, want) {
		t.Errorf("systemd was told %q; want READY=1 and %s", got, want)
	}

	got := make([]byte, len(block(7)))
	if _, err := reading.ReadAt(got, 0); err != nil || string(got) != string(block(7)) {
		t.Errorf("the file that was open: %v", err)
	}
	if err := writing.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close of what was being written: %v, want EIO", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "g", "half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was being written: %v", err)
	}
	s.check(0, blocks)
	buf := make([]byte, 64)
	if n, err := unix.Getxattr(s.path(5), attr, buf); err != nil || string(buf[:n]) != value { // (H2)
		t.Errorf("an attribute of a process: %q, %v", buf[:max(n, 0)], err)
	}
	after := s.status()
	if after.PID != second.pid || after.Mount.Epoch != 2 || after.Mount.ReadPath != "passthrough" || !after.Mount.Tested || after.Counters.Adopted != blocks {
		t.Errorf("status: %+v", after)
	}
	if got, _, _ := harness.Kvfs(t, "quota", s.dir); got != quotas { // with the same use
		t.Errorf("quotas: %s, want %s", got, quotas)
	}
	s.write(blocks, blocks+10)
	s.check(0, blocks+10)

	if _, stderr, code := harness.Kvfs(t, "evict", "--tier", "memory", "--force", s.path(3), s.path(4)); code != 0 {
		t.Errorf("evict of a pinned block: exit code %d, %s", code, stderr)
	}
	s.check(3, 4)
	if _, err := os.Stat(s.path(4)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a block that was evicted: %v", err)
	}

	if _, stderr, code := harness.Kvfs(t, "umount", s.dir); code != 1 || !strings.Contains(stderr, "files are open") {
		t.Errorf("umount with a file open: exit code %d, %s", code, stderr)
	}
	reading.Close()
	if _, stderr, code := harness.Kvfs(t, "umount", s.dir); code != 0 {
		t.Errorf("umount: exit code %d, %s", code, stderr)
	}
	second.end()
	if second.code != 0 {
		t.Errorf("the second daemon ended with %d", second.code)
	}
	if got := told(); got != "STOPPING=1" {
		t.Errorf("systemd was told %q, want STOPPING=1", got)
	}
	if left := harness.MountPoints(s.memory); len(left) > 0 {
		t.Errorf("memory is left: %q", left)
	}
	if _, err := os.Lstat(after.Mount.Takeover); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestTakeoverKeepsSettings shows that what can change does: the size of memory, and the HTTP
// address, which is free by then; and that SIGTERM ends the new daemon as it did the old one.
func TestTakeoverKeepsSettings(t *testing.T) {
	// An address of this process alone: no other process gets the port before the daemon.
	own := net.IPv4(127, 100, byte(os.Getpid()>>8), byte(os.Getpid()))
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: own})
	must(t, err)
	address := l.Addr().String()
	l.Close()
	s := newSite(t, "--http", address)
	s.mount()
	s.write(0, 20)
	d := s.takeover("--memory-size", "256MiB")
	s.check(0, 20)
	if c, err := net.Dial("tcp", address); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if len(harness.MountPoints(s.dir)) > 0 {
		t.Error("still mounted")
	}
}

// TestTakeoverFull takes over a mount whose memory is full, as that of a cache is, after most of it was read. After
// the takeover there is room at once for blocks that come from the SSD and for new ones.
func TestTakeoverFull(t *testing.T) {
	s := newSite(t, "--memory-size", "8MiB", "--memory-headroom", "2MiB", "--disk-cascade", "sync",
		"--disk", "size=256MiB,path="+t.TempDir())
	first := s.mount()
	const blocks, more = 200, 50 // of 64 KiB: memory takes 128
	s.write(0, blocks)
	s.check(0, blocks)
	s.takeover()
	first.end()
	s.check(0, blocks)
	s.write(blocks, blocks+more)
	s.check(blocks, blocks+more)
}

// TestRefused shows what cannot be taken over, or not so; the daemon that is there goes on.
func TestRefused(t *testing.T) {
	s := newSite(t)
	refused := func(want int, text string, flags ...string) {
		t.Helper()
		if code, said := s.refused(flags...); code != want || !strings.Contains(said, text) {
			t.Errorf("takeover with %q: exit code %d, want %d, and %q in\n%s", flags, code, want, text, said)
		}
	}
	refused(4, "nothing is mounted at "+s.dir)
	first := s.mount()
	s.write(0, 10)
	refused(3, "memory.size", "--memory-size", "1000TiB")
	refused(3, "memory.dir: got "+s.base, "--memory-dir", s.base)
	refused(3, "mount.fs_name", "--mount-fs-name", "other")
	refused(3, "mount.max_write", "--mount-max-write", "64KiB")
	refused(3, "mount.allow_other: got off, the daemon has on", "--mount-allow-other", "off")
	refused(3, "memory.passthrough", "--memory-passthrough", "off")
	refused(3, "no_such_policy", "--memory-policy", "no_such_policy")
	if _, stderr, code := harness.KvfsAs(t, &harness.User{UID: 23001, GID: 23001}, "mount", "--takeover", "--memory-size", "64MiB", s.dir); code != 4 ||
		!strings.Contains(stderr, "only root") {
		t.Errorf("as another user: exit code %d, %s", code, stderr)
	}
	if _, stderr, code := harness.Kvfs(t, "mount", "--mode", "standalone-store", "--takeover", s.dir); code != 3 || !strings.Contains(stderr, "kvfs serve") {
		t.Errorf("in mode standalone-store: exit code %d, %s", code, stderr)
	}
	s.answeredBy(first)
	s.check(0, 10)
	first.kill()
	refused(4, "its daemon is dead")
}

// TestRefusedMounts shows kinds of mounts that have no takeover.
func TestRefusedMounts(t *testing.T) {
	t.Run("tmpfs", func(t *testing.T) {
		s := newSite(t)
		must(t, unix.Mount("tmpfs", s.dir, "tmpfs", 0, "size=1m"))
		if code, said := s.refused(); code != 4 || !strings.Contains(said, "is not a kvfs mount") {
			t.Errorf("exit code %d\n%s", code, said)
		}
	})
	t.Run("spliced", func(t *testing.T) {
		if _, err := os.Stat("/bin/fusermount3"); err != nil {
			harness.Skip(t, "no fusermount3: %v", err)
		}
		s := newSite(t)
		s.flags = append(s.flags, "--memory-passthrough", "off")
		d := s.mount()
		s.write(0, 3)
		s.flags = append(s.flags, "--memory-passthrough", "auto")
		if code, said := s.refused(); code != 4 || !strings.Contains(said, "it splices") {
			t.Errorf("exit code %d\n%s", code, said)
		}
		s.check(0, 3)
		s.answeredBy(d)
	})
	t.Run("standalone-store", func(t *testing.T) {
		owner := harness.Serve(t, harness.Options{MemorySize: "64MiB"})
		d := harness.Mount(t, harness.Options{MemorySize: "-", Flags: []string{"--mode", "standalone-store", "--store-socket", owner.Socket}})
		_, stderr, code := harness.Kvfs(t, "mount", "--takeover", "--memory-size", "64MiB", d.Dir)
		if code != 4 || !strings.Contains(stderr, "its mode is standalone-store") {
			t.Errorf("exit code %d, %s", code, stderr)
		}
		if err := os.Mkdir(d.Path("x"), 0o755); err != nil {
			t.Error(err)
		}
	})
}
