package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/state"
)

// wrongMemory is a memory tier of which the first files that are opened are others, and empty.
type wrongMemory struct {
	driver.Primary
	wrong atomic.Int64
}

func (m *wrongMemory) Open(id driver.BlobID) (*os.File, error) {
	if m.wrong.Add(-1) < 0 {
		return m.Primary.Open(id)
	}
	id, file, err := m.Primary.Create()
	if err != nil {
		return nil, err
	}
	return file, m.Primary.Remove(id)
}

// startWrongOwner serves from a memory of which the first files that are opened are wrong.
func startWrongOwner(t *testing.T, cfg *config.Config, wrong int64) {
	t.Helper()
	memory, err := mem.Open(t.Context(), mem.Options{ID: "wrong", Dir: cfg.Memory.Dir, SizeBytes: int64(cfg.Memory.Size)})
	must(t, err)
	m := &wrongMemory{Primary: memory}
	m.wrong.Store(wrong)
	mounts := &fs.Mounts{}
	engine, err := tiers.Open(t.Context(), state.Options{
		Primary: m, CapacityBytes: int64(cfg.Memory.Size), HeadroomBytes: int64(cfg.Memory.Size), Kernels: true,
		Alive: mounts.Alive, Invalidate: mounts.Invalidate, Dropped: mounts.Dropped,
	})
	must(t, err)
	l, err := handoff.Listen(handoff.Options{Path: cfg.Store.Socket, Release: "v0.0.0", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(errors.Join(err, engine.Close(context.Background(), false)))
	}
	go l.Serve(newOwner(&daemon{dir: l.Path(), cfg: cfg, log: zap.NewNop(), memory: memory, engine: engine}, mounts)) // ends with l
	t.Cleanup(func() {
		check(t, errors.Join(l.Close(), engine.Close(context.Background(), false)))
	})
}

// TestAttachSelfTest (A10): the process that mounts reads what the memory of the owner holds. Where
// passthrough gives other bytes the owner is asked to answer without; where nothing gives them nothing is
// mounted.
func TestAttachSelfTest(t *testing.T) {
	needMount(t)
	for name, c := range map[string]struct {
		passthrough string
		wrong       int64
		path        string
		err         error
	}{
		"passthrough":       {config.Auto, 0, "passthrough", nil},
		"passthrough wrong": {config.Auto, 1, "copy", nil},
		"on, wrong":         {config.On, 1, "", fs.ErrPassthrough},
		"both wrong":        {config.Auto, 1 << 30, "", fs.ErrSelfTest},
	} {
		t.Run(name, func(t *testing.T) {
			owner := ownerConfig(t)
			startWrongOwner(t, owner, c.wrong)
			cfg := guestConfig(t, owner, time.Minute)
			cfg.Memory.Passthrough = c.passthrough
			if c.err != nil {
				dir := t.TempDir()
				if err := (Program{}).Mount(t.Context(), cfg, dir, 0, &Readiness{}); !errors.Is(err, c.err) || exit.Code(err) != exit.Mount {
					t.Errorf("got %v, exit code %d", err, exit.Code(err))
				}
				if m, err := mounts.Find(dir); m != nil || err != nil {
					t.Errorf("mounted, %v", err)
				}
				return
			}
			dir, _ := startGuest(t, cfg)
			if out, err := shownStatus(dir); err != nil || !strings.Contains(out, "read path   "+c.path) {
				t.Errorf("%v, %s; want %s", err, out, c.path)
			}
			block := filepath.Join(dir, "block")
			check(t, os.WriteFile(block, []byte("block"), 0o644))
			if got, err := os.ReadFile(block); err != nil || string(got) != "block" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
