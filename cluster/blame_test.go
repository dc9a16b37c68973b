package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
)

// TestLeaseLate shows that a holder that takes long for its leases, as one whose device is
// slow, keeps its link: the block comes by TCP, or not where that is not allowed, and the
// breaker of calls is told, unless the caller had too little time.
func TestLeaseLate(t *testing.T) {
	for _, path := range []Path{PathAuto, PathRDMA} {
		for _, hurried := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d hurried %v", path, hurried), func(t *testing.T) {
				_, a, b := fabricPair(t, path, func(o *Options) {
					if o.CallTimeout = 200 * time.Millisecond; hurried {
						o.CallTimeout = time.Hour
					}
					o.tuning.lease = time.Second // of one whose answer came too late
				})
				p, data := holding(t, a, b)
				gate := make(chan struct{})
				a.locked(func() { a.gate = gate })
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				if !hurried { // far more than for the lease: until that is late
					ctx, cancel = context.WithTimeout(t.Context(), patience)
					defer cancel()
					go func() { // ends with ctx
						for ctx.Err() == nil {
							if p.Member().Failures > 0 {
								cancel()
							}
							time.Sleep(time.Millisecond) // reason: a failure has no event
						}
					}()
				}
				_, _, err := fetchOne(t, ctx, p, BlockRef{Path: "g/x", Seq: 5}) // neither way is quick enough
				if err == nil {
					t.Error("it came")
				}
				if m := p.Member(); m.Path != pathRDMA || m.PathReason != "" {
					t.Errorf("the link is blamed: %+v", m)
				}
				if failures := p.Member().Failures; hurried && path == PathRDMA && failures != 0 || !hurried && failures == 0 {
					t.Errorf("%d failures of the peer", failures)
				}
				close(gate)
				a.locked(func() { a.gate = nil })
				eventually(t, "it is fetched by RDMA", func() bool {
					got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
					return err == nil && bytes.Equal(got, data) && b.Stats().FabricFetches > 0
				})
				returned(t, a)
			})
		}
	}
}

// locked runs fn with the lock of the backend held.
func (b *fakeBackend) locked(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
}

// TestHurriedRead shows that a read that was cut off because its caller had little time does
// not end the link, if the peer can be read; and ends it if it cannot.
func TestHurriedRead(t *testing.T) {
	for _, dead := range []bool{false, true} {
		n, a, b := fabricPair(t, PathAuto, func(o *Options) { o.tuning.stall = time.Hour })
		caller := &hurried{Context: t.Context()}
		p, data := holding(t, a, b)
		link := p.live().link.Load()
		fabricOf(b).set(func(f *testFabric) {
			f.read = func(ctx context.Context, _ rdma.RemoteRegion, _ func(rdma.RemoteRegion) error) error {
				<-ctx.Done()
				caller.little.Store(false) // what is left is enough for the other way
				if dead {
					n.Cut("a", "b")
				}
				return ctx.Err()
			}
		})
		a.locked(func() { a.mangle = func(*BlockRef, *BlockInfo) { caller.little.Store(true) } }) // while the lease is made
		got, _, err := fetchOne(t, caller, p, BlockRef{Path: "g/x", Seq: 5})
		if err != nil || !bytes.Equal(got, data) || fabricOf(b).count() != 1 {
			t.Errorf("dead %v: %v, %d reads", dead, err, fabricOf(b).count())
		}
		a.locked(func() { a.mangle = nil })
		if dead {
			eventually(t, "the link is found dead", func() bool { return p.Member().Path == pathTCP })
			if m := p.Member(); !strings.HasPrefix(m.PathReason, probeFailed) {
				t.Errorf("%+v", m)
			}
			continue
		}
		eventually(t, "the link was tried", func() bool { return len(link.doubted) == 0 })
		fabricOf(b).set(func(f *testFabric) { f.read = nil })
		if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); err != nil || p.live().link.Load() != link || b.Stats().FabricFetches != 1 {
			t.Errorf("the link is lost: %v, %+v", err, p.Member())
		}
	}
}

// hurried is a context that has, while it says so, little time left; else far more.
type hurried struct {
	context.Context
	little atomic.Bool
}

// Deadline implements context.Context.
func (c *hurried) Deadline() (time.Time, bool) {
	if c.little.Load() {
		return time.Now().Add(200 * time.Millisecond), true
	}
	return time.Now().Add(time.Hour), true
}

// TestUnregisteredProbe shows that a node that cannot register any memory closes its fabric,
// and says why with each peer.
func TestUnregisteredProbe(t *testing.T) {
	n := inproc.NewNetwork()
	with := withFabric(t, n, PathAuto)
	a := start(t, "a", with)
	b := start(t, "b", func(o *Options) {
		with(o)
		o.Fabric.(*testFabric).register = func(int64) error { return errors.New("memlock") }
	}, a)
	together(t, a, b)
	m, _ := b.member("a")
	if m.Path != pathTCP || !strings.HasPrefix(m.PathReason, noRDMAHere) || !strings.Contains(m.PathReason, "memlock") {
		t.Errorf("%+v", m)
	}
	if err := b.FabricErr(); err == nil || !strings.Contains(err.Error(), "memlock") {
		t.Errorf("got %v", err)
	}
	if a.FabricErr() != nil {
		t.Error(a.FabricErr())
	}
	if _, err := b.o.Fabric.Connect("a"); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("its fabric is open: %v", err)
	}
}

// probed is a fabric whose peers can be tried card by card.
type probed struct {
	*testFabric
	failMu sync.Mutex
	fail   error
}

func (f *probed) set(err error) {
	f.failMu.Lock()
	defer f.failMu.Unlock()
	f.fail = err
}

func (f *probed) Connect(addr string) (rdma.Peer, error) {
	p, err := f.testFabric.Connect(addr)
	return probedPeer{p, f}, err
}

type probedPeer struct {
	rdma.Peer
	f *probed
}

// Probe implements prober.
func (p probedPeer) Probe(context.Context) error {
	p.f.failMu.Lock()
	defer p.f.failMu.Unlock()
	return p.f.fail
}

// TestCardsReturn shows that cards that do not reach a peer are named, while it is read by the
// others, until they do.
func TestCardsReturn(t *testing.T) {
	with := withFabric(t, inproc.NewNetwork(), PathAuto)
	a := start(t, "a", with)
	var f *probed
	b := start(t, "b", func(o *Options) {
		with(o)
		f = &probed{testFabric: o.Fabric.(*testFabric), fail: errors.New("rail 1: no route\nrail 2: no route")}
		o.Fabric, o.tuning.cards = f, time.Millisecond
	}, a)
	together(t, a, b)
	reason := func(want string) {
		t.Helper()
		eventually(t, "reason "+want, func() bool { m, _ := b.member("a"); return m.Path == pathRDMA && m.PathReason == want })
	}
	reason(someCards + ": rail 1: no route; rail 2: no route")
	f.set(errors.New("rail 2: no route"))
	reason(someCards + ": rail 2: no route")
	f.set(nil)
	reason("")
	eventually(t, "the log is told", func() bool { return b.logs.FilterMessageSnippet("every RDMA device reaches a peer again").Len() == 1 })
	var told []string
	for _, e := range b.logs.FilterMessageSnippet("not every RDMA device").All() {
		told = append(told, fmt.Sprint(e.ContextMap()["reason"]))
	}
	if !slices.Equal(told, []string{someCards + ": rail 1: no route; rail 2: no route"}) {
		t.Errorf("told %q", told)
	}
}
