package daemon

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadyFD shows that the reader of the descriptor gets one line when the mount is ready,
// and the end without a line if it never is (E12).
func TestReadyFD(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	for _, ready := range []bool{true, false} {
		var fds [2]int
		must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
		r := NewReadiness(fds[1])
		want := ""
		if ready {
			want = "ready /mnt/kv\n"
			r.ready("/mnt/kv")
			r.ready("/mnt/kv") // is told once
		}
		r.Close()
		r.Close()
		f := os.NewFile(uintptr(fds[0]), "pipe")
		if got, err := io.ReadAll(f); err != nil || string(got) != want {
			t.Errorf("ready %v: got %q, %v, want %q", ready, got, err, want)
		}
		f.Close()
	}
	none := NewReadiness(-1)
	none.ready("/mnt/kv")
	none.stopping()
	none.Close()
}

// TestNotifySystemd shows the datagrams that systemd gets, at a path and at an
// abstract address, and that a socket that is not there does no harm.
func TestNotifySystemd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "notify")
	for env, name := range map[string]string{path: path, "@" + path: "\x00" + path} {
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		must(t, err)
		t.Setenv("NOTIFY_SOCKET", env)
		r := NewReadiness(-1)
		r.ready("/mnt/kv")
		r.stopping()
		for _, want := range []string{"READY=1\nSTATUS=mounted on /mnt/kv", "STOPPING=1"} {
			buf := make([]byte, 4096)
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
				t.Errorf("%q: got %q, %v, want %q", env, buf[:n], err, want)
			}
		}
		conn.Close()
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "absent"))
	notifySystemd("READY=1")
}

// TestKeepAlive shows that systemd hears that the process works, as often as it wants, only after a look
// whether it does, and no more once that is over.
func TestKeepAlive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "2000")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	works := make(chan struct{})
	keepAlive(ctx, func() { <-works })
	for range 3 {
		works <- struct{}{}
		buf := make([]byte, 4096)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "WATCHDOG=1" {
			t.Fatalf("got %q, %v", buf[:n], err)
		}
	}
	cancel()
	close(works)
}
