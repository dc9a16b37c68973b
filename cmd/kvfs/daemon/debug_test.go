package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
)

// TestDebug shows that pprof answers at a socket of our user alone, that a start removes the socket of a dead
// process and not that of a living one, and that the stop removes ours.
func TestDebug(t *testing.T) {
	dir := "/run/kvfs/0"
	if os.Geteuid() != 0 {
		t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
		dir = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "kvfs")
	}
	near, names := filepath.Join(dir, "store.sock"), [2]string{fmt.Sprintf("debug-dead-%d", os.Getpid()), fmt.Sprintf("debug-alive-%d", os.Getpid())}
	var others [2]*handoff.Private
	for i, name := range names {
		var err error
		if others[i], err = handoff.ListenPrivate(near, "none", name); err != nil {
			t.Fatal(err)
		}
		defer others[i].Remove()
	}
	others[0].Close() // its socket stays, as after a crash
	defer others[1].Close()

	socket := filepath.Join(dir, fmt.Sprintf("debug-%d.sock", os.Getpid()))
	stop := serveDebug(zap.NewNop())
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	reply, err := client.Get("http://kvfs/debug/pprof/goroutine?debug=2")
	must(t, err)
	body, err := io.ReadAll(reply.Body)
	reply.Body.Close()
	if err != nil || !strings.Contains(string(body), "daemon.TestDebug") {
		t.Errorf("%v, got %.200q", err, body)
	}
	var st unix.Stat_t
	if err := unix.Stat(socket, &st); err != nil || st.Mode != unix.S_IFSOCK|0o600 || st.Uid != uint32(os.Geteuid()) {
		t.Errorf("%v, the socket has mode %#o and uid %d", err, st.Mode, st.Uid)
	}
	for i, want := range []bool{false, true} {
		if _, err := os.Stat(others[i].Path()); (err == nil) != want {
			t.Errorf("%s: %v", others[i].Path(), err)
		}
	}
	stop()
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("after the stop: %v", err)
	}
}
