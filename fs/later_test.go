package fs

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/state"
)

// gatedTier is a tier whose Loads wait until gate is closed.
type gatedTier struct {
	driver.Tier
	asked chan struct{} // gets one for each Load
	gate  chan struct{}
}

func (g *gatedTier) Load(job *driver.Job) {
	g.asked <- struct{}{}
	go func() { // ends when the test opens the gate
		<-g.gate
		g.Tier.Load(job)
	}()
}

// TestDetachPromoting: an owner detaches while a client waits for a block to come up into
// memory. The next owner answers that client; what comes up for the first one is given back.
func TestDetachPromoting(t *testing.T) {
	mounts := &Mounts{}
	inner, err := disk.Open(t.Context(), disk.Options{
		Devices: []disk.DeviceOptions{{Dir: t.TempDir(), CapacityBytes: 64 << 20}}, AllowTmpfs: true,
	})
	must(t, err)
	gated := &gatedTier{Tier: inner, asked: make(chan struct{}, 8), gate: make(chan struct{})}
	engine := sharedEngine(t, mounts, memoryIn(t), state.SecondaryOptions{Name: "disk", Tier: gated})
	x := openSession(t)
	s := attachHere(t, engine, mounts, x)
	c := startClient(t)
	path := filepath.Join(x.Dir, "group", "block")
	c.do("write", path)
	released(t, s)
	must(t, engine.Drain(t.Context()))
	if r, err := engine.EvictFrom(t.Context(), tiers.EvictRequest{Tier: "memory", All: true}); err != nil || r.Blocks != 1 {
		t.Fatalf("evicted %+v, %v", r, err)
	}
	c.begin("read", path)
	<-gated.asked
	s.Detach()
	x.Epoch, x.Init = 2, s.SessionInit()
	next := attachHere(t, engine, mounts, x)
	close(gated.gate)
	c.end("ok")
	released(t, next)
	if got := engine.Stats().PinnedBytes; got != 0 {
		t.Errorf("%d bytes pinned", got)
	}
}

// unsure is the tier of other nodes that must be asked about each name, and have none.
type unsure struct {
	driver.Remote // nil: the engine does not call the other methods
	ask           func()
}

func (u *unsure) Locate(string) (driver.Located, bool)  { return driver.Located{}, false }
func (u *unsure) Unknown(string) bool                   { return true }
func (u *unsure) Ask(_ context.Context, paths []string) { u.ask() }
func (u *unsure) Close(context.Context) error           { return nil }

// TestLookupAsks: while a look-up waits for other nodes, another thread answers the next requests.
func TestLookupAsks(t *testing.T) {
	asked, answered := make(chan struct{}), make(chan struct{})
	others := &unsure{ask: func() {
		close(asked)
		select {
		case <-answered:
		case <-time.After(time.Minute):
			t.Error("nobody answers the next request")
		}
	}}
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t), state.SecondaryOptions{Name: "peer", Tier: others, Cascade: state.CascadeOff})
	x := openSession(t)
	attachHere(t, engine, mounts, x)
	c := startClient(t)
	c.begin("fails", filepath.Join(x.Dir, "block"))
	<-asked
	var st unix.Statfs_t
	must(t, unix.Statfs(x.Dir, &st))
	close(answered)
	c.end("ok")
}

// TestDetachListing: an owner that lets go waits until a listing has ended, and the next one answers
// what comes to list meanwhile. A client that keeps a directory open does not hold it up.
func TestDetachListing(t *testing.T) {
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t))
	x := openSession(t)
	s := attachHere(t, engine, mounts, x)
	group := filepath.Join(x.Dir, "group")
	lists, comes := startClient(t), startClient(t)
	lists.do("write", filepath.Join(group, "block"))
	lists.do("open", group)
	detached := make(chan struct{})
	go func() { // ends by itself
		s.Detach()
		close(detached)
	}()
	for s.files.listings.begin() { // until it waits
		s.files.listings.end()
		select {
		case <-detached:
			t.Fatal("it did not wait")
		default:
			runtime.Gosched()
		}
	}
	comes.begin("list", group)
	lists.do("list-held", group)
	lists.do("close-held", group)
	<-detached
	x.Epoch, x.Init = 2, s.SessionInit()
	next := attachHere(t, engine, mounts, x)
	comes.end("ok")
	lists.do("open", group)
	next.Detach()
	x.Epoch, x.Init = 3, next.SessionInit()
	released(t, attachHere(t, engine, mounts, x))
}
