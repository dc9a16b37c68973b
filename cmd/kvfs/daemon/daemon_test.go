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
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/page"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/mem"
)

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTestDaemon returns a daemon with a small memory tier and an engine, but
// without a mount.
func newTestDaemon(t *testing.T) *daemon {
	t.Helper()
	cfg := loadConfig(t, `{"memory": {"size": "64MiB"}, "groups": {"p\u001b[2J": {"pinned": true, "quota": "1MiB"}}}`)
	d := &daemon{program: Program{Version: "v0.0.1"}, dir: "/mnt/kv", cfg: cfg, started: time.Now()}
	d.page = metrics.NewPage(d.snapshot)
	d.view = metrics.PageOf(func() []byte {
		return (&page.Source{Config: cfg, Engine: d.engine, Log: &page.Log{}, Status: d.status}).JSON()
	})
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
		check(t, d.engine.Close(context.Background(), false))
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
	if len(groups) != 1 || groups[0].(map[string]any)["name"] != `p\x1b[2J` || groups[0].(map[string]any)["quota_bytes"] != float64(1<<20) {
		t.Errorf("groups: got %v", doc["groups"])
	}
	if reply, err := status.Parse(text); err != nil || reply.Version != "v0.0.1" || len(reply.Tiers) != 1 {
		t.Errorf("kvfs status reads %+v, %v", reply, err)
	}
}

// TestServeHTTP shows what the HTTP server answers while the daemon starts, when it lacks something, and when it is
// ready; and that it is off by default, refuses an address in use, and ends.
func TestServeHTTP(t *testing.T) {
	d := newTestDaemon(t)
	off, err := openWeb("", "", zap.NewNop())
	if err != nil || off.close() != nil {
		t.Errorf("off: %v", err)
	}
	w, err := openWeb("127.0.0.1:0", "", zap.NewNop())
	must(t, err)
	addr := w.l.Addr().String()
	if _, err := openWeb(addr, "", zap.NewNop()); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("an address in use: %v", err)
	}
	client := &http.Client{Timeout: time.Minute}
	wants := func(when, method, path string, code int, form, want string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, nil)
		must(t, err)
		reply, err := client.Do(req)
		must(t, err)
		body, _ := io.ReadAll(reply.Body)
		reply.Body.Close()
		if got := reply.Header.Get("Content-Type"); reply.StatusCode != code || got != form || !strings.HasPrefix(string(body), want) {
			t.Errorf("%s: %s %s: got %d, %s, %.100q, want %d, %s, %q", when, method, path, reply.StatusCode, got, body, code, form, want)
		}
	}
	const plain = "text/plain; charset=utf-8"
	wants("at first", "GET", "/readyz", 503, plain, "starting\n")
	w.at("tier disk: recovering")
	wants("starting", "GET", "/healthz", 200, plain, "ok\n")
	wants("starting", "GET", "/readyz", 503, plain, "tier disk: recovering\n")
	wants("starting", "GET", "/metrics", 503, plain, "not ready\n")
	wants("starting", "GET", "/status", 503, plain, "not ready\n")
	w.works(d)
	wants("without a mount", "GET", "/readyz", 503, plain, "mount /mnt/kv: not serving\n")
	wants("without a mount", "GET", "/metrics", 200, metrics.ContentType, "# HELP ")
	d.owner = newOwner(d, &fs.Mounts{}) // which needs no mount
	wants("ready", "GET", "/healthz", 200, plain, "ok\n")
	wants("ready", "GET", "/readyz", 200, plain, "ready\n")
	wants("ready", "GET", "/status", 200, "application/json", "{")
	wants("ready", "POST", "/status", 405, plain, "")
	wants("ready", "GET", "/", 404, plain, "")
	wants("ready", "GET", "/debug/pprof/", 404, plain, "")
	check(t, w.close())
	if reply, err := client.Get("http://" + addr + "/readyz"); err == nil {
		reply.Body.Close()
		t.Error("it answers after the stop")
	}
}

// TestServePage shows that the numbers of the page come with the token, once there is a daemon, and that the settings of the page
// are checked at the start.
func TestServePage(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	must(t, os.WriteFile(open, []byte("0123456789abcdef"), 0o644))
	for _, c := range []struct{ addr, file, want string }{
		{"", filepath.Join(dir, "token"), "http_token_file: it needs http"},
		{"127.0.0.1:0", open, "http_token_file: " + open + ": mode -rw-r--r--"},
	} {
		if _, err := openWeb(c.addr, c.file, zap.NewNop()); exit.Code(err) != exit.Config || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.addr, err, c.want)
		}
	}
	d := newTestDaemon(t)
	core, logged := observer.New(zap.InfoLevel)
	w, err := openWeb("127.0.0.1:0", filepath.Join(dir, "token"), zap.New(core))
	must(t, err)
	defer w.close()
	get := func(token string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+w.l.Addr().String()+"/page.json", nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		reply, err := http.DefaultClient.Do(r)
		must(t, err)
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		must(t, err)
		return reply.StatusCode, string(body)
	}
	if code, body := get(w.page.Token); code != 503 || body != "not ready\n" {
		t.Errorf("starting: %d, %q", code, body)
	}
	w.works(d)
	var got struct {
		Status struct{ Schema int }
		Memory struct{ Scales []float64 }
	}
	if code, body := get(w.page.Token); code != 200 || json.Unmarshal([]byte(body), &got) != nil || got.Status.Schema != status.Schema || len(got.Memory.Scales) != 4 {
		t.Errorf("ready: %d, %.300s", code, body)
	}
	if code, body := get("x"); code != 401 || strings.Contains(body, "{") {
		t.Errorf("without the token: %d, %q", code, body)
	}
	if n := logged.FilterMessage("page").Len(); n != 1 || logged.Len() != 1 || strings.Contains(fmt.Sprint(logged.All()), w.page.Token) {
		t.Errorf("logged: %v", logged.All())
	}
}

// TestUnready shows the line about each thing that a daemon lacks.
func TestUnready(t *testing.T) {
	d := newTestDaemon(t)
	d.owner = newOwner(d, &fs.Mounts{})
	st := d.engine.Stats()
	for _, state := range []string{"online", "degraded", "offline"} {
		t := lane.Stats{Name: "ssd-" + state}
		t.State, t.Reason = state, "/mnt/a:\nEIO"
		st.Secondaries = append(st.Secondaries, t)
	}
	if got, want := d.unready(&st), []string{"tier ssd-offline: offline: /mnt/a: EIO"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHTTPBounded shows that idle connections do not stay, neither before nor after a request,
// and that there are only so many: no descriptors are left to them that opens of blocks need.
func TestHTTPBounded(t *testing.T) {
	w, err := openWeb("127.0.0.1:0", "", zap.NewNop())
	must(t, err)
	defer w.close()
	const many = 300
	var conns []net.Conn
	for range many {
		c, err := net.Dial("tcp", w.l.Addr().String())
		must(t, err)
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

// check reports an error, and lets the test go on.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
