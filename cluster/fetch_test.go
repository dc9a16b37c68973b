package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers/block"
)

// ways are the ways to fetch: by name and by lease, over each transport. change is called
// for each cluster, what it returns for each node.
var ways = []struct {
	name   string
	change func(t *testing.T) func(o *Options)
}{
	{"tcp get", func(*testing.T) func(o *Options) { return func(*Options) {} }},
	{"tcp lease", func(t *testing.T) func(o *Options) {
		return func(o *Options) {
			tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0", StallTimeout: patience})
			must(t, err)
			o.Transport = noGetter{tr}
		}
	}},
	{"inproc get", func(t *testing.T) func(o *Options) { return inNetwork(t, inproc.NewNetwork()) }},
	{"inproc lease", func(t *testing.T) func(o *Options) {
		change := inNetwork(t, inproc.NewNetwork())
		return func(o *Options) {
			change(o)
			o.Transport = noGetter{o.Transport}
		}
	}},
}

// inNetwork has the bytes go through a network within the process.
func inNetwork(t *testing.T, n *inproc.Network) func(o *Options) {
	return func(o *Options) {
		tr, err := n.Transport(o.Gossip.Name, nil)
		must(t, err)
		o.Transport = tr
	}
}

// pair returns two nodes that follow each other.
func pair(t *testing.T, change func(o *Options)) (a, b *testNode) {
	t.Helper()
	a = start(t, "a", change)
	b = start(t, "b", change, a)
	together(t, a, b)
	return a, b
}

// TestFetch fetches what is there, what is not, and what the holder lies about, in both
// ways: the answer is the right bytes or one of the kinds of error.
func TestFetch(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			a, b := pair(t, way.change(t))
			data := pattern(2, 300_000)
			a.put("g/x", 5, data)
			a.put("g/empty", 6, nil)
			p := b.located(t, "g/x", 1)[0].Peer
			for _, tc := range []struct {
				name   string
				ref    BlockRef
				mangle func(ref *BlockRef, info *BlockInfo)
				want   error
			}{
				{"present", BlockRef{Path: "g/x", Seq: 5}, nil, nil},
				{"any version", BlockRef{Path: "g/x", Seq: 0}, nil, nil},
				{"empty", BlockRef{Path: "g/empty", Seq: 6}, nil, nil},
				{"gone", BlockRef{Path: "g/none", Seq: 5}, nil, rdma.ErrGone},
				{"other version", BlockRef{Path: "g/x", Seq: 4}, nil, rdma.ErrGone},
				{"no name", BlockRef{Path: "/", Seq: 4}, nil, rdma.ErrGone},
				{"lies about path", BlockRef{Path: "g/x", Seq: 5}, func(_ *BlockRef, i *BlockInfo) { i.Path = "g/y" }, rdma.ErrProtocol},
				{"lies about version", BlockRef{Path: "g/x", Seq: 5}, func(_ *BlockRef, i *BlockInfo) { i.Seq++ }, rdma.ErrProtocol},
				{"lies about size", BlockRef{Path: "g/x", Seq: 5}, func(_ *BlockRef, i *BlockInfo) { i.Size++ }, rdma.ErrProtocol},
				{"no checksum", BlockRef{Path: "g/x", Seq: 5}, func(_ *BlockRef, i *BlockInfo) { i.Sum = block.Checksum{} }, rdma.ErrProtocol},
				{"absurd size", BlockRef{Path: "g/x", Seq: 5}, func(_ *BlockRef, i *BlockInfo) { i.Size = -1 }, rdma.ErrProtocol},
			} {
				t.Run(tc.name, func(t *testing.T) {
					a.locked(func() { a.mangle = tc.mangle })
					p.bulk.Reset()
					got, _, err := fetchOne(t, t.Context(), p, tc.ref)
					if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
						t.Fatalf("got %v, want %v", err, tc.want)
					}
					if err == nil && tc.ref.Path == "g/x" && !bytes.Equal(got, data) {
						t.Error("other bytes")
					}
				})
			}
			eventually(t, "loans and leases are given back", func() bool { return a.loans() == 0 && a.Stats().Leases == 0 })
		})
	}
}

// TestFetchMany fetches more blocks than go in one request, some of which are gone and
// some refused by the caller: each is answered once.
func TestFetchMany(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			a, b := pair(t, way.change(t))
			const n = 3*maxFetchItems + 5
			for i := range n {
				if i%5 != 0 {
					a.put(fmt.Sprintf("g/%d", i), 1, pattern(i, 1000+i))
				}
			}
			b.located(t, fmt.Sprintf("g/%d", n-1), 1)
			errRefused := errors.New("refused")
			p := b.PeerBy("a")
			fetchVerified(t, p, n, func(i int) error {
				switch {
				case i%5 == 0:
					return rdma.ErrGone
				case i%7 == 0:
					return errRefused
				}
				return nil
			})
			if m := p.Member(); m.Failures != 0 || m.Breaker != "closed" || m.FetchedKeys == 0 {
				t.Errorf("what the caller refuses is not the peer's failure: %+v", m)
			}
			p.Fetch(t.Context(), nil)
		})
	}
}

// TestSplit shows how blocks are split into requests, by number and by bytes.
func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		n    int
		size int64
		want []int
	}{
		{1, 0, []int{1}},
		{1, maxFetchBytes * 2, []int{1}},
		{maxFetchItems, 0, []int{maxFetchItems}},
		{maxFetchItems + 1, 1, []int{maxFetchItems, 1}},
		{5, maxFetchBytes / 2, []int{2, 2, 1}},
		{3, maxFetchBytes, []int{1, 1, 1}},
	} {
		var list []*Fetch
		for range tc.n {
			list = append(list, &Fetch{Size: tc.size})
		}
		var got []int
		for _, r := range split(list) {
			got = append(got, len(r))
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%d blocks of %d bytes: %v, want %v", tc.n, tc.size, got, tc.want)
		}
	}
}

// TestFetchDeadline shows that a holder that does not answer costs the deadline, that
// this opens its breaker at once, that nobody waits for it then, and that a probe closes it again.
func TestFetchDeadline(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			a, b := pair(t, way.change(t))
			a.put("g/x", 5, pattern(3, 1000))
			gate := make(chan struct{})
			a.locked(func() { a.gate = gate })
			p := b.located(t, "g/x", 1)[0].Peer
			// Hold probes back, but for the one that is made at once, so that the breaker is seen open.
			p.bulk.Min, p.bulk.Max = time.Hour, time.Hour
			eventually(t, "it failed as often as it may", func() bool { // one whose time is over before it begins is no failure
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if _, _, err := fetchOne(t, ctx, p, BlockRef{Path: "g/x", Seq: 5}); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("got %v, want the deadline", err)
				}
				return p.Member().Failures > 0
			})
			if n := p.Member().Failures; n != 1 {
				t.Fatalf("%d failures", n)
			}
			if strings.HasSuffix(way.name, "lease") { // that probe lends nothing, so it gets an answer
				eventually(t, "the first probe closes the breaker", p.Usable)
				if !p.bulk.Failed() {
					t.Fatal("on probation one failure does not open it")
				}
			}
			if p.Usable() || p.Member().Breaker == "closed" {
				t.Fatalf("after a failure: %+v", p.Member())
			}
			if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); !errors.Is(err, rdma.ErrUnavailable) {
				t.Errorf("breaker open: %v", err)
			}
			if at := b.Locate("g/x", nil); len(at) != 1 {
				t.Errorf("breaker open: located %v", at)
			}
			close(gate)
			eventually(t, "the probe closes the breaker", func() bool {
				p.bulk.Kick()
				return p.Usable()
			})
			if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); err != nil {
				t.Errorf("after the probe: %v", err)
			}
			if p.Member().Breaker != "closed" {
				t.Error("a success does not close the breaker")
			}
		})
	}
}

// TestFaults shows what becomes of bytes that are wrong, too few, or do not come: they
// are found out, and a peer whose bulk channel is dead is not asked for blocks, however well its control channel works,
// until it is back.
func TestFaults(t *testing.T) {
	for _, lease := range []bool{false, true} {
		t.Run(fmt.Sprintf("lease %v", lease), func(t *testing.T) {
			network := inproc.NewNetwork()
			change := inNetwork(t, network)
			a, b := pair(t, func(o *Options) {
				change(o)
				if lease {
					o.Transport = noGetter{o.Transport}
				}
			})
			a.put("g/x", 5, pattern(3, 10_000))
			p := b.located(t, "g/x", 1)[0].Peer
			network.Corrupt("a", "b", 1)
			if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); !errors.Is(err, errChecksum) {
				t.Errorf("wrong bytes: %v", err)
			}
			network.Truncate("a", "b", 1)
			if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); !errors.Is(err, rdma.ErrProtocol) && !errors.Is(err, rdma.ErrUnavailable) {
				t.Errorf("too few bytes: %v", err)
			}
			network.Cut("a", "b")
			eventually(t, "the breaker opens", func() bool {
				_, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
				if !errors.Is(err, rdma.ErrUnavailable) {
					t.Fatalf("cut off: %v", err)
				}
				return !p.Usable()
			})
			if m := p.Member(); m.Breaker == "closed" || !p.Callable() {
				t.Errorf("calls are not answered: %+v", m)
			}
			for range 5 { // however well calls go
				if err := p.probeBulk(t.Context(), p.live()); !errors.Is(err, rdma.ErrUnavailable) || p.Usable() {
					t.Errorf("probe %v, usable %v", err, p.Usable())
				}
				if err := p.List(t.Context(), "g", func(Name) bool { return true }); err != nil {
					t.Error(err)
				}
			}
			network.Heal("a", "b")
			eventually(t, "the peer answers again", func() bool {
				_, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
				return err == nil
			})
		})
	}
}
