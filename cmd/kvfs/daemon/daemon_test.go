package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
)

// newTestDaemon returns a daemon with a small memory tier and an engine, but
// without a mount.
func newTestDaemon(t *testing.T) *daemon {
	t.Helper()
	cfg := loadConfig(t, `{"memory": {"size": "64MiB"}, "groups": {"pool": {"pinned": true, "quota": "1MiB"}}}`)
	d := &daemon{program: Program{Version: "v0.0.1"}, dir: "/mnt/kv", cfg: cfg, started: time.Now()}
	o := memoryOptions(cfg, d.dir, zap.NewNop())
	o.Dir, o.NoMount = filepath.Join(t.TempDir(), "memory"), true
	var err error
	if d.memory, err = mem.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if d.engine, err = tiers.Open(t.Context(), engineOptions(cfg, d.memory, &fs.Hooks{}, zap.NewNop())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.engine.Close(context.Background(), false); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestStatusDocument pins the fields that others read: the contract of
// .kvfs/status.
func TestStatusDocument(t *testing.T) {
	d := newTestDaemon(t)
	if d.adopted() {
		t.Error("a new store has adopted blocks")
	}
	var doc map[string]any
	text := d.status()
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, key := range []string{"version", "pid", "uptime_seconds", "mount", "tiers", "groups", "counters", "memory", "process"} {
		if _, ok := doc[key]; !ok {
			t.Errorf("no %s in\n%s", key, text)
		}
	}
	mount, _ := doc["mount"].(map[string]any)
	for _, key := range []string{"dir", "read_path", "write_path"} {
		if _, ok := mount[key].(string); !ok {
			t.Errorf("mount.%s is %v", key, mount[key])
		}
	}
	all, _ := doc["tiers"].([]any)
	if len(all) != 1 {
		t.Fatalf("tiers: got %v", doc["tiers"])
	}
	tier, _ := all[0].(map[string]any)
	for key, want := range map[string]any{
		"name": "memory", "type": "memory", "state": "online",
		"capacity_bytes": float64(64 << 20), "used_bytes": 0.0, "pinned_bytes": 0.0, "blocks": 0.0,
	} {
		if tier[key] != want {
			t.Errorf("tiers[0].%s: got %v, want %v", key, tier[key], want)
		}
	}
	groups, _ := doc["groups"].([]any)
	if len(groups) != 1 || groups[0].(map[string]any)["name"] != "pool" || groups[0].(map[string]any)["quota_bytes"] != float64(1<<20) {
		t.Errorf("groups: got %v", doc["groups"])
	}
	if reply, err := status.Parse(text); err != nil || reply.Version != "v0.0.1" || len(reply.Tiers) != 1 {
		t.Errorf("kvfs status reads %+v, %v", reply, err)
	}
}

// TestServeHTTP shows what the HTTP server answers, and that it is off by
// default, refuses an address in use, and ends.
func TestServeHTTP(t *testing.T) {
	d := newTestDaemon(t)
	off, err := listenHTTP("")
	if err != nil || off != nil || serveHTTP(off, d, zap.NewNop())() != nil {
		t.Errorf("off: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if _, err := listenHTTP(addr); err == nil {
		t.Error("an address in use is no error")
	}
	l.Close()
	if l, err = listenHTTP(addr); err != nil {
		t.Skipf("somebody else took %s: %v", addr, err)
	}
	stop := serveHTTP(l, d, zap.NewNop())
	client := &http.Client{Timeout: time.Minute}
	for _, c := range []struct {
		method, path string
		code         int
		contentType  string
	}{
		{"GET", "/readyz", 200, "text/plain; charset=utf-8"},
		{"GET", "/status", 200, "application/json"},
		{"POST", "/status", 405, ""},
		{"GET", "/", 404, ""},
		{"GET", "/metrics", 404, ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+addr+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(reply.Body)
		reply.Body.Close()
		if reply.StatusCode != c.code || c.contentType != "" && reply.Header.Get("Content-Type") != c.contentType {
			t.Errorf("%s %s: got %d, %s", c.method, c.path, reply.StatusCode, reply.Header.Get("Content-Type"))
		}
		if c.path == "/readyz" && string(body) != "ready\n" {
			t.Errorf("/readyz: got %q", body)
		}
		if c.path == "/status" && c.code == 200 && !json.Valid(body) {
			t.Errorf("/status: got %q", body)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if reply, err := client.Get("http://" + addr + "/readyz"); err == nil {
		reply.Body.Close()
		t.Error("it answers after the stop")
	}
}

// TestHTTPBounded shows that idle connections do not stay, neither before nor after a request,
// and that there are only so many: no descriptors are left to them that opens of blocks need.
func TestHTTPBounded(t *testing.T) {
	l, err := listenHTTP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := serveHTTP(l, newTestDaemon(t), zap.NewNop())
	defer stop()
	const many = 300
	var conns []net.Conn
	for range many {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(c, "GET /readyz HTTP/1.1\r\nHost: kvfs\r\n\r\n") // may be closed already
		conns = append(conns, c)
	}
	answered := 0
	for _, c := range conns {
		reply, err := io.ReadAll(c) // until the server closes it
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("an idle connection stays")
		}
		if len(reply) > 0 {
			answered++
		}
	}
	if answered == 0 || answered == many {
		t.Errorf("%d of %d connections served, want some, and not all at a time", answered, many)
	}
}
