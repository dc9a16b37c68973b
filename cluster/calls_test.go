package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestStore shows that a peer takes copies of what is offered by fetching them from who
// offers, and answers for each; and that the kinds of its errors arrive.
func TestStore(t *testing.T) {
	nodes := cluster(t, "a", "b")
	a, b := nodes[0], nodes[1]
	var offers []BlockInfo
	for i := range control.MaxOffers + 6 {
		offers = append(offers, a.put(fmt.Sprintf("g/%d", i), 5, pattern(i, 2000)))
	}
	offers = append(offers, BlockInfo{Path: "g/none", Seq: 5, Mode: 0o100600})
	p := a.PeerBy("b")
	got := p.Store(t.Context(), offers)
	if len(got) != len(offers) {
		t.Fatalf("%d outcomes for %d offers", len(got), len(offers))
	}
	for i, o := range got[:len(got)-1] {
		if o.Status != StoreDone || o.Err != nil {
			t.Errorf("offer %d: %+v", i, o)
		}
	}
	if o := got[len(got)-1]; o.Status != StoreFailed || !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("an offer of nothing: %+v", o)
	}
	if data, info, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/3", Seq: 5}); err != nil || string(data) != string(pattern(3, 2000)) || info.Seq != 5 {
		t.Errorf("the copy: %+v %v", info, err)
	}
	if s := b.Stats().Stored; s != control.MaxOffers+6 {
		t.Errorf("%d counted", s)
	}

	for _, tc := range []struct{ give, want StoreOutcome }{
		{StoreOutcome{Status: StoreHad, Err: nil}, StoreOutcome{Status: StoreHad, Err: nil}},
		{StoreOutcome{Status: StoreRefused, Err: fmt.Errorf("here: %w", block.ErrNoSpace)}, StoreOutcome{Status: StoreRefused, Err: block.ErrNoSpace}},
		{StoreOutcome{Status: StoreFailed, Err: block.ErrLoop}, StoreOutcome{Status: StoreFailed, Err: block.ErrLoop}},
		{StoreOutcome{Status: StoreFailed, Err: errors.New("strange")}, StoreOutcome{Status: StoreFailed, Err: block.ErrUnavailable}},
		{StoreOutcome{Status: StoreFailed, Err: nil}, StoreOutcome{Status: StoreFailed, Err: block.ErrUnavailable}},
	} {
		b.setStore(func(context.Context, *Peer, []BlockInfo) []StoreOutcome { return []StoreOutcome{tc.give} })
		if got := p.Store(t.Context(), offers[:1])[0]; got != tc.want {
			t.Errorf("%+v arrives as %+v, want %+v", tc.give, got, tc.want)
		}
	}
	b.setStore(func(context.Context, *Peer, []BlockInfo) []StoreOutcome { return nil })
	if got := p.Store(t.Context(), offers[:1])[0]; got.Status != StoreFailed || !errors.Is(got.Err, rdma.ErrProtocol) {
		t.Errorf("no answer: %+v", got)
	}
	var from string
	var offered BlockInfo
	b.setStore(func(_ context.Context, p *Peer, o []BlockInfo) []StoreOutcome {
		from, offered = p.Name(), o[0]
		return make([]StoreOutcome, 1)
	})
	p.Store(t.Context(), offers[:1])
	if from != "a" || !reflect.DeepEqual(offered, offers[0]) {
		t.Errorf("from %s: %+v, want %+v", from, offered, offers[0])
	}
}

func (b *fakeBackend) setStore(fn func(context.Context, *Peer, []BlockInfo) []StoreOutcome) {
	b.locked(func() { b.store = fn })
}

// TestStoreBusy shows that a peer serves so many offers at a time and no more.
func TestStoreBusy(t *testing.T) {
	nodes := cluster(t, "a", "b")
	a, b := nodes[0], nodes[1]
	entered, gate := make(chan struct{}, maxStoring), make(chan struct{})
	b.setStore(func(context.Context, *Peer, []BlockInfo) []StoreOutcome {
		entered <- struct{}{}
		<-gate
		return make([]StoreOutcome, 1)
	})
	p := a.PeerBy("b")
	done := make(chan []StoreOutcome, maxStoring)
	for range maxStoring {
		go func() { done <- p.Store(t.Context(), []BlockInfo{{Path: "g/x"}}) }() // waited for below
	}
	for range maxStoring {
		<-entered
	}
	if o := p.Store(t.Context(), []BlockInfo{{Path: "g/x"}}); !errors.Is(o[0].Err, rdma.ErrBusy) {
		t.Errorf("one too many: %+v", o)
	}
	close(gate)
	for range maxStoring {
		<-done
	}
	if !p.Usable() || p.Member().Failures != 0 {
		t.Error("busy is no failure")
	}
}

// TestSilentPeer shows that a test of a peer that does not answer keeps fetches from waiting for it until a probe
// succeeds, and that one of a peer that answers changes nothing.
func TestSilentPeer(t *testing.T) {
	nodes := cluster(t, "a", "b")
	a, b := nodes[0], nodes[1]
	p := a.PeerBy("b")
	ctx, cancel := withPatience(t.Context())
	defer cancel()
	if p.Test(ctx); !p.Usable() || p.Member().Failures != 0 {
		t.Errorf("it answers: %+v", p.Member())
	}
	gate := make(chan struct{})
	b.locked(func() { b.gate = gate })
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if p.Test(short); p.Usable() {
		t.Error("fetches wait for a peer that does not answer")
	}
	close(gate)
	eventually(t, "a probe succeeds", p.Usable)
}

// TestListStat lists a directory of several pages, stops early, and asks for paths, more
// than go into one call.
func TestListStat(t *testing.T) {
	nodes := cluster(t, "a", "b")
	a, b := nodes[0], nodes[1]
	const n = 2*listPage + 7
	want := map[string]BlockInfo{}
	for i := range n {
		info := BlockInfo{Path: fmt.Sprintf("g/d/%d", i), Seq: uint64(i), Size: 5, Mode: 0o100644, Sum: block.Sum(nil), Mtime: 3}
		want[info.Path] = info
		a.locked(func() { a.blocks[info.Path] = &fakeBlock{info: info} })
	}
	p := b.PeerBy("a")
	got := map[string]BlockInfo{}
	if err := p.List(t.Context(), "g/d", func(e Name) bool {
		if e.Path != "g/d/"+e.Name {
			t.Errorf("name %q of path %q", e.Name, e.Path)
		}
		got[e.Path] = e.BlockInfo
		return true
	}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("listed %d of %d, %v", len(got), n, err)
	}
	calls := 0
	if err := p.List(t.Context(), "g/d", func(Name) bool { calls++; return calls < 3 }); err != nil || calls != 3 {
		t.Errorf("stopped after %d, %v", calls, err)
	}
	if err := p.List(t.Context(), "g/none", func(Name) bool { calls++; return true }); err != nil || calls != 3 {
		t.Errorf("an empty directory: %d, %v", calls, err)
	}
	var paths []string
	for i := range control.MaxStat + 10 {
		paths = append(paths, fmt.Sprintf("g/d/%d", i))
	}
	list, err := p.Stat(t.Context(), paths)
	if err != nil || len(list) != len(paths) {
		t.Fatalf("stat: %d, %v", len(list), err)
	}
	for i, info := range list {
		if w, ok := want[paths[i]]; (info != nil) != ok || ok && !reflect.DeepEqual(*info, w) {
			t.Errorf("%s: %+v, want %+v", paths[i], info, w)
		}
	}
	if !p.Usable() || p.Member().Failures != 0 {
		t.Error("failures", p.Member().LastError)
	}
}

// TestPlainError shows that what an operator reads of a failed call is its cause.
func TestPlainError(t *testing.T) {
	refused := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 10.97.1.1:7946: connect: connection refused"`)
	for _, c := range []struct {
		err  error
		want string
	}{
		{refused, "dial tcp 10.97.1.1:7946: connect: connection refused"},
		{fmt.Errorf("ask: %w", refused), "dial tcp 10.97.1.1:7946: connect: connection refused"},
		{status.Error(codes.ResourceExhausted, "too many calls"), "too many calls"},
		{errors.New("short read"), "short read"},
	} {
		if got := plainError(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}
