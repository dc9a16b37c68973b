package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/lease"
	"github.com/kvfs/kvfs/cluster/remote"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
)

// readHook is what a test makes of a read of a block.
type readHook = func(ctx context.Context, r rdma.RemoteRegion, next func(rdma.RemoteRegion) error) error

// linkFaults are the faults of a read by the fabric: what is done to the network or to the
// read, what the link is lost for, and what the fetch fails with where there is no other way.
var linkFaults = []struct {
	name   string
	break_ func(n *inproc.Network) readHook
	reason string
	err    error
}{
	{"cut before", func(n *inproc.Network) readHook { n.Cut("a", "b"); return nil }, readFailed, rdma.ErrUnavailable},
	{"cut in the middle", func(n *inproc.Network) readHook { n.Truncate("a", "b", 1); return nil }, readFailed, rdma.ErrProtocol},
	{"corrupt", func(n *inproc.Network) readHook { n.Corrupt("a", "b", 1); return nil }, wrongBytes, errChecksum},
	{"silent", func(*inproc.Network) readHook {
		return func(ctx context.Context, _ rdma.RemoteRegion, _ func(rdma.RemoteRegion) error) error {
			<-ctx.Done()
			return ctx.Err()
		}
	}, linkStalled, rdma.ErrUnavailable},
	{"key of an earlier process", func(*inproc.Network) readHook {
		return func(_ context.Context, r rdma.RemoteRegion, next func(rdma.RemoteRegion) error) error {
			return next(rdma.RemoteRegion{Key: []byte("of an earlier process"), Size: r.Size})
		}
	}, readFailed, rdma.ErrUnavailable},
	{"closed here", func(*inproc.Network) readHook {
		return func(context.Context, rdma.RemoteRegion, func(rdma.RemoteRegion) error) error { return rdma.ErrClosed }
	}, readFailed, rdma.ErrUnavailable},
	{"no memory to read into", func(*inproc.Network) readHook {
		return func(context.Context, rdma.RemoteRegion, func(rdma.RemoteRegion) error) error {
			return errors.New("cannot register")
		}
	}, readFailed, rdma.ErrUnavailable},
}

// TestLinkFaults shows what becomes of a fetch whose read by the fabric fails: the block
// comes by the transport, in the same call, or, where RDMA is the only path, does not come;
// wrong bytes are not taken. The link is made anew by nobody who waits, and used again.
func TestLinkFaults(t *testing.T) {
	for _, tc := range linkFaults {
		for _, path := range []Path{PathAuto, PathRDMA} {
			t.Run(fmt.Sprint(tc.name, " ", path), func(t *testing.T) {
				n, a, b := fabricPair(t, path, func(o *Options) {
					if tc.reason == linkStalled {
						o.tuning.stall = 20 * time.Millisecond
					}
				})
				p, data := holding(t, a, b)
				hook := tc.break_(n)
				fabricOf(b).set(func(f *testFabric) { f.read = hook })
				got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
				if path == PathRDMA {
					if !errors.Is(err, tc.err) || a.Stats().Lent != 0 {
						t.Errorf("got %v, want %v; %d blocks by TCP", err, tc.err, a.Stats().Lent)
					}
				} else if err != nil || !bytes.Equal(got, data) || a.Stats().Lent != 1 || b.Stats().FabricFallbacks != 1 {
					t.Errorf("by TCP: %v, stats %+v", err, b.Stats())
				}
				checkLost(t, b, p, path, tc.reason)
				fabricOf(b).set(func(f *testFabric) { f.read = nil })
				n.Heal("a", "b")
				b.Node.o.tuning.stall = patience // nobody reads now
				before := b.Stats().FabricFetches
				eventually(t, "the link is made anew", func() bool {
					p.fabric.Kick()
					return p.Member().Path == pathRDMA
				})
				if got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); err != nil || !bytes.Equal(got, data) {
					t.Errorf("by the new link: %v", err)
				}
				if b.Stats().FabricFetches != before+1 {
					t.Error("the new link is not used")
				}
				returned(t, a)
			})
		}
	}
}

// checkLost shows that a node says why it has no link to a any more.
func checkLost(t *testing.T, b *testNode, p *Peer, path Path, reason string) {
	t.Helper()
	want := pathTCP
	if path == PathRDMA {
		want = ""
	}
	if m := p.Member(); m.Path != want || !strings.HasPrefix(m.PathReason, reason) || m.Failures != 0 || m.Breaker != "closed" {
		t.Errorf("member %+v, want %q because %q", m, want, reason)
	}
	warnings := b.logs.FilterMessageSnippet("peer without RDMA").FilterLevelExact(zapcore.WarnLevel).All()
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0].ContextMap()["reason"].(string), reason) {
		t.Errorf("warnings %v, want one because %q", warnings, reason)
	}
}

// TestLinkLogsOnce shows that a link that fails again and again for the same reason is in
// the log once.
func TestLinkLogsOnce(t *testing.T) {
	n, a, b := fabricPair(t, PathAuto, nil)
	p, _ := holding(t, a, b)
	for range 3 {
		n.Truncate("a", "b", 1)
		if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the link is made anew", func() bool { p.fabric.Kick(); return p.Member().Path == pathRDMA })
	}
	if b.Stats().FabricFallbacks != 3 {
		t.Errorf("stats %+v", b.Stats())
	}
	checkWarned := b.logs.FilterMessageSnippet("peer without RDMA").Len()
	if up := b.logs.FilterMessageSnippet("peer is read by RDMA").Len(); checkWarned != 1 || up != 1 {
		t.Errorf("%d warnings, %d of its return", checkWarned, up)
	}
}

// TestLeaseExpires shows that bytes that came after the end of their lease are not taken:
// the holder may have used the memory for something else.
func TestLeaseExpires(t *testing.T) {
	_, a, b := fabricPair(t, PathAuto, func(o *Options) { o.tuning.lease, o.tuning.stall = 50*time.Millisecond, time.Hour })
	p, data := holding(t, a, b)
	for _, late := range []bool{false, true} { // whether the read ends well after that
		fabricOf(b).set(func(f *testFabric) {
			f.read = func(ctx context.Context, r rdma.RemoteRegion, next func(rdma.RemoteRegion) error) error {
				err := next(r)
				<-ctx.Done() // which the end of the lease is
				if late {
					return err
				}
				return ctx.Err()
			}
		})
		before := a.Stats().Lent
		got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
		if err != nil || !bytes.Equal(got, data) || a.Stats().Lent != before+1 {
			t.Errorf("late %v: %v", late, err)
		}
		if m := p.Member(); m.Path != pathTCP || !strings.Contains(m.PathReason, remote.ErrExpired.Error()) {
			t.Errorf("late %v: %+v", late, m)
		}
		eventually(t, "the link is made anew", func() bool { p.fabric.Kick(); return p.Member().Path == pathRDMA })
	}
	returned(t, a)
}

// TestReaderDies shows that the leases of a reader that goes away in the middle of a read
// end.
func TestReaderDies(t *testing.T) {
	_, a, b := fabricPair(t, PathAuto, func(o *Options) { o.tuning.lease = time.Hour })
	p, _ := holding(t, a, b)
	reading, closed := make(chan struct{}), make(chan struct{})
	fabricOf(b).set(func(f *testFabric) {
		f.read = func(_ context.Context, r rdma.RemoteRegion, next func(rdma.RemoteRegion) error) error {
			if a.Stats().Leases != 1 || a.loans() != 1 {
				t.Error("it is not held")
			}
			close(reading)
			<-closed
			return next(r)
		}
	})
	result := make(chan error, 1)
	go func() { // ends with the fetch
		_, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
		result <- err
	}()
	<-reading
	b.Node.Close()
	close(closed)
	if err := <-result; !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("the node was closed: %v", err)
	}
	returned(t, a)
}

// TestNoLease shows that a block that the holder gives no lease for comes by TCP, where that is allowed, while the link
// stays, and by RDMA when there are leases again.
func TestNoLease(t *testing.T) {
	for _, tc := range []struct {
		name    string
		refuse  func(a *testNode, p *Peer) (again func())
		err     error
		unasked bool // there is none to ask
	}{
		{"not registered", func(a *testNode, _ *Peer) func() {
			fabricOf(a).set(func(f *testFabric) { f.register = func(int64) error { return errors.New("memlock") } })
			return func() { fabricOf(a).set(func(f *testFabric) { f.register = nil }) }
		}, rdma.ErrBusy, false},
		{"too many leases", func(a *testNode, _ *Peer) func() {
			var taken []*lease.Place
			for i := range lease.Max {
				taken = append(taken, a.leases.Reserve(i))
			}
			return func() {
				for _, place := range taken {
					place.Cancel()
				}
			}
		}, rdma.ErrBusy, false},
		{"too many bytes", func(a *testNode, _ *Peer) func() {
			place := a.leases.Reserve("another")
			place.Bytes(fabricBytes, fabricBytes)
			return place.Cancel
		}, rdma.ErrBusy, false},
		{"no calls", func(_ *testNode, p *Peer) func() {
			p.control.Min, p.control.Max = time.Hour, time.Hour
			for range breaker.Threshold {
				p.control.Failed()
			}
			return p.control.Reset
		}, rdma.ErrUnavailable, true},
	} {
		for _, path := range []Path{PathAuto, PathRDMA} {
			t.Run(fmt.Sprint(tc.name, " ", path), func(t *testing.T) {
				_, a, b := fabricPair(t, path, nil)
				p, data := holding(t, a, b)
				again := tc.refuse(a, p)
				for range 2 {
					got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
					if path == PathRDMA && !errors.Is(err, tc.err) || path == PathAuto && (err != nil || !bytes.Equal(got, data)) {
						t.Error(err)
					}
				}
				if m := p.Member(); m.Path != pathRDMA || m.PathReason != "" || p.Usable() != (path == PathAuto || !tc.unasked) {
					t.Errorf("%+v, usable %v", m, p.Usable())
				}
				if tc.unasked && a.Stats().LeaseGrants != 0 || !tc.unasked && p.Member().Failures != 0 {
					t.Errorf("%d leases, %+v", a.Stats().LeaseGrants, p.Member())
				}
				told := a.logs.FilterMessageSnippet("cannot be registered").Len()
				if b.logs.FilterMessageSnippet("without RDMA").Len() != 0 || (told == 1) != (tc.name == "not registered") {
					t.Errorf("the holder told %d times", told)
				}
				again()
				if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); err != nil || b.Stats().FabricFetches != 1 {
					t.Error(err)
				}
				returned(t, a)
			})
		}
	}
}

// TestClaim shows that a reader which claims a block hears by RDMA that another one fetches it.
func TestClaim(t *testing.T) {
	for _, path := range []Path{PathAuto, PathRDMA} {
		_, a, b := fabricPair(t, path, nil)
		p, _ := holding(t, a, b)
		a.locked(func() { a.later = true })
		for ref, want := range map[BlockRef]error{
			{Path: "g/none", Seq: 5}:              rdma.ErrGone,
			{Path: "g/none", Seq: 5, Claim: true}: rdma.ErrLater,
			{Path: "g/x", Seq: 5, Claim: true}:    nil,
		} {
			if _, _, err := fetchOne(t, t.Context(), p, ref); !errors.Is(err, want) || errors.Is(err, rdma.ErrLater) != (want == rdma.ErrLater) {
				t.Errorf("path %d, %+v: got %v, want %v", path, ref, err, want)
			}
		}
		if m := p.Member(); m.Failures != 0 {
			t.Errorf("path %d: %+v", path, m)
		}
	}
}

// TestBadLeases shows that a link whose leases make no sense is given up, and that TCP has
// the last word.
func TestBadLeases(t *testing.T) {
	for name, tc := range map[string]struct {
		holder func(a *testNode)
		want   error // of the fetch
	}{
		"no lifetime": {func(a *testNode) { a.Node.o.tuning.lease = -1 }, nil},
		"long key": {func(a *testNode) {
			fabricOf(a).set(func(f *testFabric) {
				f.remote = func(r rdma.RemoteRegion) rdma.RemoteRegion {
					if r.Size != remote.ProbeSize {
						r.Key = make([]byte, rdma.MaxKey+1)
					}
					return r
				}
			})
		}, nil},
		"another size": {func(a *testNode) {
			fabricOf(a).set(func(f *testFabric) {
				f.remote = func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Size += r.Size & 1; return r }
			})
		}, nil},
		"another version": {func(a *testNode) { a.mangle = func(_ *BlockRef, i *BlockInfo) { i.Seq++ } }, rdma.ErrProtocol},
		"another path":    {func(a *testNode) { a.mangle = func(_ *BlockRef, i *BlockInfo) { i.Path = "g/y" } }, rdma.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			n := inproc.NewNetwork()
			with := withFabric(t, n, PathAuto)
			a := prepare(t, "a", with)
			tc.holder(a)
			must(t, a.Start(a.fakeBackend))
			b := start(t, "b", with, a)
			together(t, a, b)
			linked(t, b, "a", pathRDMA)
			data := pattern(3, 9_999)
			a.put("g/x", 5, data)
			p := b.located(t, "g/x", 1)[0].Peer
			p.fabric.Min, p.fabric.Max = time.Hour, time.Hour
			got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
			if !errors.Is(err, tc.want) || tc.want == nil && (err != nil || !bytes.Equal(got, data)) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if m := p.Member(); m.Path != pathTCP || !strings.HasPrefix(m.PathReason, leaseFailed) {
				t.Errorf("member %+v", m)
			}
			if b.Stats().FabricFetches != 0 {
				t.Error("it was taken")
			}
		})
	}
}

// TestCallerGivesUp shows that a fetch whose caller goes, or has no time any more, answers
// with that, once; the link is not blamed.
func TestCallerGivesUp(t *testing.T) {
	for _, canceled := range []bool{false, true} {
		_, a, b := fabricPair(t, PathAuto, func(o *Options) { o.tuning.stall = time.Hour })
		p, _ := holding(t, a, b)
		ctx, cancel := context.WithCancel(t.Context())
		want := context.Canceled
		if !canceled {
			want = context.DeadlineExceeded
		}
		caller := endable{Context: ctx, err: want}
		fabricOf(b).set(func(f *testFabric) {
			f.read = func(ctx context.Context, _ rdma.RemoteRegion, _ func(rdma.RemoteRegion) error) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}
		})
		if _, _, err := fetchOne(t, caller, p, BlockRef{Path: "g/x", Seq: 5}); !errors.Is(err, want) || a.Stats().Lent != 0 {
			t.Errorf("got %v, want %v", err, want)
		}
		if m := p.Member(); m.Path != pathRDMA {
			t.Errorf("canceled %v: %+v", canceled, m)
		}
		returned(t, a)
	}
}

// endable is a context that ends with an error of the test's choice, and has a deadline that
// is far away.
type endable struct {
	context.Context
	err error
}

func (c endable) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

func (c endable) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return c.err
}

// TestLinkStorm fetches from several goroutines while reads by the fabric fail in all ways:
// each block comes once, with the right bytes, by one way or the other.
func TestLinkStorm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	n, a, b := fabricPair(t, PathAuto, func(o *Options) {
		o.tuning.stall, o.tuning.breakerMin, o.tuning.breakerMax = 20*time.Millisecond, time.Millisecond, 5*time.Millisecond
	})
	const blocks = 100
	for i := range blocks {
		a.put(fmt.Sprintf("g/%d", i), 1, pattern(i, 1000+i))
	}
	p := b.located(t, fmt.Sprintf("g/%d", blocks-1), 1)[0].Peer
	stop := make(chan struct{})
	unless := func(what string, ok func() bool) {
		eventually(t, what, func() bool {
			select {
			case <-stop:
				return true
			default:
				return ok()
			}
		})
	}
	var faults, readers sync.WaitGroup
	faults.Go(func() { // ends with stop
		for stopped := false; !stopped; {
			before := b.Stats().FabricFetches
			unless("the link is used", func() bool { return b.Stats().FabricFetches > before })
			hook := linkFaults[r.IntN(len(linkFaults))].break_(n)
			fabricOf(b).set(func(f *testFabric) { f.read = hook })
			unless("the fault is met", func() bool { return p.Member().Path != pathRDMA })
			fabricOf(b).set(func(f *testFabric) { f.read = nil })
			n.Heal("a", "b")
			select {
			case <-stop:
				stopped = true
			default:
			}
		}
	})
	for range 4 {
		readers.Go(func() { // ends by itself
			end := time.Now().Add(patience)
			for i := 0; i < 10 || b.Stats().FabricFallbacks == 0 && time.Now().Before(end); i++ {
				fetchVerified(t, p, blocks, nil)
			}
		})
	}
	readers.Wait()
	close(stop)
	faults.Wait()
	s := b.Stats()
	t.Logf("%d by the fabric, %d fell back", s.FabricFetches, s.FabricFallbacks)
	if s.FabricFetches == 0 || s.FabricFallbacks == 0 || p.Member().Failures != 0 {
		t.Errorf("stats %+v, member %+v", s, p.Member())
	}
	returned(t, a)
}
