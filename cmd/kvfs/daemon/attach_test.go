package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// guestConfig is the configuration of a mount that attaches to the owner of cfg.
func guestConfig(t *testing.T, owner *config.Config, timeout time.Duration) *config.Config {
	t.Helper()
	cfg := loadConfig(t, `{"log": {"level": "error"}, "store": {"socket": "`+owner.Store.Socket+`"}}`)
	cfg.Mode, cfg.Memory.Size, cfg.Store.OwnerTimeout = config.ModeStandaloneStore, 0, scalar.Duration(timeout)
	return cfg
}

// startGuest runs attach at a new directory until stop, and waits until it is ready.
func startGuest(t *testing.T, cfg *config.Config) (dir string, stop func() error) {
	t.Helper()
	dir = t.TempDir()
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { // ends with ctx, or when it is unmounted
		ready := &Readiness{file: w}
		defer ready.Close()
		done <- Program{}.Mount(ctx, cfg, dir, 0, ready)
	}()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		check(t, stop())
	})
	r.SetReadDeadline(time.Now().Add(30 * time.Second))
	line := make([]byte, 4096)
	if n, err := r.Read(line); err != nil || string(line[:n]) != "ready "+dir+"\n" {
		t.Fatalf("ready line %q, %v", line[:n], err)
	}
	return dir, stop
}

// needMount skips the test where it may not mount.
func needMount(t *testing.T) {
	t.Helper()
	fuseDevice(t).Close()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// TestAttachWithoutOwner shows how long a mount waits for an owner, and that it mounts nothing
// before there is one.
func TestAttachWithoutOwner(t *testing.T) {
	needMount(t)
	for _, timeout := range []time.Duration{0, time.Millisecond} {
		cfg := guestConfig(t, ownerConfig(t), timeout)
		dir := t.TempDir()
		err := (Program{}).Mount(t.Context(), cfg, dir, 0, &Readiness{})
		if !errors.Is(err, handoff.ErrNoOwner) || exit.Code(err) != exit.Mount {
			t.Errorf("timeout %v: %v, exit code %d", timeout, err, exit.Code(err))
		}
		if m, err := mounts.Find(dir); m != nil || err != nil {
			t.Errorf("timeout %v: mounted, %v", timeout, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Program{}).Mount(ctx, guestConfig(t, ownerConfig(t), time.Hour), t.TempDir(), 0, &Readiness{}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped while it waits: %v", err)
	}
}

// TestAttachToStopped shows that an owner that is there and does not answer, as one that is stopped,
// is told from none.
func TestAttachToStopped(t *testing.T) {
	needMount(t)
	owner := ownerConfig(t)
	must(t, os.MkdirAll(filepath.Dir(owner.Store.Socket), 0o700))
	l, err := net.Listen("unixpacket", owner.Store.Socket)
	must(t, err)
	defer l.Close()
	dir := t.TempDir()
	err = (Program{}).Mount(t.Context(), guestConfig(t, owner, time.Millisecond), dir, 0, &Readiness{})
	if err == nil || errors.Is(err, handoff.ErrNoOwner) || !strings.Contains(err.Error(), fmt.Sprintf("no answer from process %d", os.Getpid())) {
		t.Errorf("got %v", err)
	}
	if exit.Code(err) != exit.Mount {
		t.Errorf("exit code %d", exit.Code(err))
	}
	if m, err := mounts.Find(dir); m != nil || err != nil {
		t.Errorf("mounted, %v", err)
	}
}

// TestAttachRefused shows that what an owner refuses is no reason to wait.
func TestAttachRefused(t *testing.T) {
	needMount(t)
	owner := ownerConfig(t)
	startOwner(t, owner)
	cfg := guestConfig(t, owner, time.Hour)
	cfg.Mount.EntryTimeout = -1
	dir := t.TempDir()
	if err := (Program{}).Mount(t.Context(), cfg, dir, 0, &Readiness{}); !errors.Is(err, handoff.ErrRefused) {
		t.Errorf("got %v", err)
	}
	if m, err := mounts.Find(dir); m != nil || err != nil {
		t.Errorf("mounted, %v", err)
	}
}

// TestPace shows that the log has each reason once.
func TestPace(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	log := zap.New(core)
	var p Pace
	for _, err := range []error{handoff.ErrNoOwner, handoff.ErrNoOwner, handoff.ErrVersion, handoff.ErrVersion, handoff.ErrNoOwner} {
		p.note(log, forOwner, err)
	}
	if logs.Len() != 3 {
		t.Errorf("%d lines, want 3", logs.Len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	if !p.Wait(ctx) {
		t.Error("the wait ended early")
	}
	cancel()
	if p.Wait(ctx) {
		t.Error("it waits for nobody")
	}
}

// TestShortOwnerTimeout shows that a mount waits for an owner no longer than owner_timeout, also
// where that is less than the time that an owner has to greet.
func TestShortOwnerTimeout(t *testing.T) {
	old := greetingTime
	greetingTime = time.Hour
	defer func() { greetingTime = old }()
	cfg := guestConfig(t, loadConfig(t, `{"store": {"socket": "`+filepath.Join(t.TempDir(), "s")+`"}}`), time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := Program{}.attach(ctx, cfg, t.TempDir(), &Readiness{}, zap.NewNop())
	if !errors.Is(err, handoff.ErrNoOwner) || !strings.Contains(err.Error(), "within 1ms") {
		t.Errorf("got %v", err)
	}
}
