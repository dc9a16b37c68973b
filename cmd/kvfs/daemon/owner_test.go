package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
)

// ownerConfig is the configuration of an owner in a directory of the test's own.
func ownerConfig(t *testing.T) *config.Config {
	t.Helper()
	dir := t.TempDir()
	return loadConfig(t, `{"memory": {"size": "64MiB", "dir": "`+dir+`/memory"}, "log": {"level": "error"},
		"store": {"socket": "`+dir+`/run/store.sock"}, "drain_timeout": "1s"}`)
}

// startOwner runs serve until the test ends and waits until it is ready.
func startOwner(t *testing.T, cfg *config.Config) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { // ends with ctx
		ready := &Readiness{file: w}
		defer ready.Close()
		done <- Program{}.Serve(ctx, cfg, ready)
	}()
	t.Cleanup(func() {
		stop()
		check(t, <-done)
		if _, err := os.Lstat(cfg.Store.Socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket after the end: %v", err)
		}
	})
	r.SetReadDeadline(time.Now().Add(30 * time.Second))
	line := make([]byte, 4096)
	n, err := r.Read(line)
	if err != nil || string(line[:n]) != "ready "+cfg.Store.Socket+"\n" {
		t.Fatalf("ready line %q, %v", line[:n], err)
	}
}

// TestServeFails shows that an owner that cannot start leaves no socket.
func TestServeFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	for name, change := range map[string]func(*config.Config){
		"too much memory": func(c *config.Config) { c.Memory.Size = 1 << 60 },
		"no memory dir":   func(c *config.Config) { c.Memory.Dir = "/proc/absent/x" },
		"http in use":     func(c *config.Config) { c.HTTP = l.Addr().String() },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := ownerConfig(t)
			change(cfg)
			if err := (Program{}).Serve(t.Context(), cfg, &Readiness{}); err == nil {
				t.Error("it served")
			}
			if _, err := os.Lstat(cfg.Store.Socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket: %v", err)
			}
			if _, err := handoff.Dial(t.Context(), cfg.Store.Socket); !errors.Is(err, handoff.ErrNoOwner) {
				t.Errorf("dial: %v", err)
			}
		})
	}
}

// TestOwnerRefuses shows that descriptors that are not what they are said to be are refused
// before anybody reads them.
func TestOwnerRefuses(t *testing.T) {
	d := newTestDaemon(t)
	d.log = zap.NewNop()
	o := newOwner(d, &fs.Mounts{})
	open := func(name string) *os.File {
		f, err := os.Open(name)
		must(t, err)
		return f
	}
	pipe, w, err := os.Pipe()
	must(t, err)
	defer w.Close()
	for name, r := range map[string]*handoff.Request{
		"a pipe":          {Dir: "/m", Epoch: 1, Dev: pipe},
		"/dev/null":       {Dir: "/m", Epoch: 1, Dev: open("/dev/null")},
		"a file":          {Dir: "/m", Epoch: 1, Dev: open("/proc/self/exe")},
		"one to spin on":  {Dir: "/m", Epoch: 1, Dev: fuseDevice(t), Spin: open("/dev/null")},
		"no procfs":       {Dir: "/m", Epoch: 1, Dev: fuseDevice(t), Proc: open("/")},
		"an idle device":  {Dir: "/m", Epoch: 1, Dev: fuseDevice(t)},
		"a damaged INIT":  {Dir: "/m", Epoch: 2, Dev: fuseDevice(t), Init: []byte("x")},
		"an earlier INIT": {Dir: "/m", Epoch: 2, Dev: fuseDevice(t)},
	} {
		if m, err := o.Attach(t.Context(), r); err == nil {
			t.Errorf("%s: attached", name)
			m.Detach()
		}
		if err := r.Dev.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: the descriptor was open: %v", name, err)
		}
	}
	var doc status.Document
	d.owner = o
	if err := json.Unmarshal(d.status(), &doc); err != nil || doc.Store == nil || len(doc.Store.Mounts) != 0 {
		t.Errorf("status: %v, %+v", err, doc.Store)
	}
}

// fuseDevice opens /dev/fuse, of which nothing is mounted.
func fuseDevice(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	return f
}

// TestGuestOptions shows what of a mount's settings counts, and what of the owner's.
func TestGuestOptions(t *testing.T) {
	options := func(text string, r *handoff.Request) fs.Options {
		return guestOptions(&daemon{cfg: loadConfig(t, text), log: zap.NewNop()}, &guest{}, r)
	}
	r := &handoff.Request{Dir: "/m", FSName: "cache", AllowOther: true, EntryTimeout: time.Hour, AttrTimeout: time.Second, MaxWrite: 65536, Passthrough: "auto"}
	o := options(`{}`, r)
	if o.Dir != "/m" || o.FSName != "cache" || !o.AllowOther || o.EntryTimeout != time.Minute || o.AttrTimeout != time.Second || o.MaxWrite != 65536 {
		t.Errorf("got %+v", o)
	}
	if o = options(`{}`, &handoff.Request{}); o.AllowOther {
		t.Error("others are let in against the mount's will")
	}
	for _, c := range []struct{ owner, mount, want string }{
		{"auto", "auto", "auto"}, {"auto", "on", "on"}, {"auto", "off", "off"}, {"on", "auto", "on"},
		{"on", "off", "off"}, {"off", "on", "off"}, {"off", "auto", "off"}, {"auto", "", "auto"},
	} {
		o := options(`{"memory": {"passthrough": "`+c.owner+`"}}`, &handoff.Request{Passthrough: c.mount})
		if string(o.Passthrough) != c.want {
			t.Errorf("owner %s, mount %s: got %s, want %s", c.owner, c.mount, o.Passthrough, c.want)
		}
	}
}
