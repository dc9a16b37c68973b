package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

type feedRecord = feed.Record

func hashOf(s string) uint64 { return location.HashPath(s) }

// offerOf is a peer's offer of a block.
func offerOf(p *farPeer, path string) cluster.BlockInfo { return *p.stat(path) }

// TestTake shows that offered blocks are fetched from the offering peer, though no feed has
// announced it as a holder, and the answers for offers that are not taken. Afterwards no hint is
// left.
func TestTake(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		setup  func(c *cell, p *farPeer, o *cluster.BlockInfo)
		status cluster.StoreStatus
		err    error
	}{
		{"taken", nil, cluster.StoreDone, nil},
		{"had", func(c *cell, p *farPeer, o *cluster.BlockInfo) {
			c.engine.put(tiers.Holding{Path: "g/x", Seq: 9}, payload(100, 1))
		}, cluster.StoreHad, nil},
		{"later here", func(c *cell, p *farPeer, o *cluster.BlockInfo) {
			c.engine.put(tiers.Holding{Path: "g/x", Seq: 10}, payload(100, 1))
		}, cluster.StoreRefused, block.ErrExist},
		{"buried", func(c *cell, p *farPeer, o *cluster.BlockInfo) { c.Bury([]driver.Grave{{Path: "g/x", Seq: 10}}) },
			cluster.StoreRefused, block.ErrExist},
		{"no room", func(c *cell, p *farPeer, o *cluster.BlockInfo) { c.engine.takeErr = block.ErrNoSpace },
			cluster.StoreRefused, block.ErrNoSpace},
		{"engine fails", func(c *cell, p *farPeer, o *cluster.BlockInfo) { c.engine.takeErr = errors.New("?") },
			cluster.StoreFailed, block.ErrUnavailable},
		{"offerer lost it", func(c *cell, p *farPeer, o *cluster.BlockInfo) { p.blocks = map[string]*memBlock{} },
			cluster.StoreFailed, block.ErrNotFound},
		{"other sum than offered", func(c *cell, p *farPeer, o *cluster.BlockInfo) { o.Sum.Sum++ },
			cluster.StoreFailed, block.ErrNotFound},
		{"wrong bytes", func(c *cell, p *farPeer, o *cluster.BlockInfo) { p.corrupt("g/x") },
			cluster.StoreFailed, block.ErrNotFound},
		{"bad path", func(c *cell, p *farPeer, o *cluster.BlockInfo) { o.Path = "../x" }, cluster.StoreFailed, block.ErrInvalid},
		{"bad size", func(c *cell, p *farPeer, o *cluster.BlockInfo) { o.Size = -1 }, cluster.StoreFailed, block.ErrInvalid},
		{"no version", func(c *cell, p *farPeer, o *cluster.BlockInfo) { o.Seq = 0 }, cluster.StoreFailed, block.ErrInvalid},
		{"a version of the far future", func(c *cell, p *farPeer, o *cluster.BlockInfo) { o.Seq = block.MaxSeq + 1 },
			cluster.StoreFailed, block.ErrInvalid}, // new versions here would follow it
		{"a directory", func(c *cell, p *farPeer, o *cluster.BlockInfo) { o.Mode = modeDir }, cluster.StoreFailed, block.ErrInvalid},
		{"read only", func(c *cell, p *farPeer, o *cluster.BlockInfo) { c.opts.Accept = false },
			cluster.StoreRefused, block.ErrReadOnly},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newCell(t, 1, nil)
			p := k.peers[0]
			p.announce = func(...feedRecord) {}
			p.add(cluster.BlockInfo{Path: "g/x", Seq: 9, Mtime: 5, Dirs: []cluster.DirInfo{{Mode: 0o700}}}, payload(100, 1))
			offer := offerOf(p, "g/x")
			if c.setup != nil {
				c.setup(k, p, &offer)
			}
			out := k.take(ctx, p, []cluster.BlockInfo{offer})
			if len(out) != 1 || out[0].Status != c.status || !errors.Is(out[0].Err, c.err) {
				t.Errorf("got %+v, want %v (%v)", out, c.status, c.err)
			}
			if k.hints.any() || errors.Is(c.err, block.ErrInvalid) && len(k.engine.took) != 0 {
				t.Errorf("a hint is left, or the engine took %v", k.engine.took)
			}
			if c.status == cluster.StoreDone {
				h := k.engine.took[0]
				if h.Seq != 9 || h.Size != 100 || h.Mtime != 5 || len(h.Dirs) != 1 || h.Sum != block.Sum(payload(100, 1)) {
					t.Errorf("took %+v", h)
				}
			}
		})
	}
}

// TestTakeBounded shows that few offers are taken at a time, however many come.
func TestTakeBounded(t *testing.T) {
	c := newCell(t, 1, nil)
	p := c.peers[0]
	var mu sync.Mutex
	var full sync.Once
	now, most := 0, 0
	release := make(chan struct{})
	p.fetch = func(ctx context.Context, blocks []*cluster.Fetch) {
		mu.Lock()
		now++
		most = max(most, now)
		if now == maxTakes {
			full.Do(func() { close(release) })
		}
		mu.Unlock()
		<-release
		mu.Lock()
		now--
		mu.Unlock()
		for _, b := range blocks {
			serve(ctx, p.memBackend, b)
		}
	}
	var offers []cluster.BlockInfo
	for i := range 5 * maxTakes {
		path := fmt.Sprint(i)
		p.add(cluster.BlockInfo{Path: path, Seq: 1}, payload(10, byte(i)))
		offers = append(offers, offerOf(p, path))
	}
	for i, o := range c.take(context.Background(), p, offers) {
		if o.Status != cluster.StoreDone {
			t.Errorf("offer %d: %+v", i, o)
		}
	}
	if most != maxTakes {
		t.Errorf("%d at a time, want %d", most, maxTakes)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range maxTakes {
		c.takes <- struct{}{}
	}
	if out := c.take(ctx, p, offers[:1]); !errors.Is(out[0].Err, block.ErrUnavailable) {
		t.Errorf("with all places taken and no time: %+v", out)
	}
}

// TestLend shows what peers get, and which error, for each answer of the engine.
func TestLend(t *testing.T) {
	c := newCell(t, 0, nil)
	b := &backend{c.Tier}
	c.engine.put(tiers.Holding{Path: "g/x", Seq: 4, UID: 9, Dirs: []driver.DirAttrs{{Mode: 0o711}}}, payload(50, 1))
	info, l, err := b.Lend(context.Background(), &cluster.BlockRef{Path: "g/x", Seq: 4})
	if err != nil || l.Size != 50 || info.Seq != 4 || info.UID != 9 || info.Sum != block.Sum(payload(50, 1)) || len(info.Dirs) != 1 {
		t.Fatalf("%+v %+v %v", info, l, err)
	}
	l.Close()
	if _, _, err := b.Lend(context.Background(), &cluster.BlockRef{Path: "g/x", Seq: 5}); !errors.Is(err, rdma.ErrGone) {
		t.Errorf("another version: %v", err)
	}
	for _, k := range []struct{ from, to error }{
		{block.ErrNotFound, rdma.ErrGone}, {block.ErrCorrupt, rdma.ErrGone}, {block.ErrClosed, rdma.ErrGone},
		{block.ErrNoSpace, rdma.ErrBusy}, {block.ErrPending, rdma.ErrBusy}, {context.DeadlineExceeded, rdma.ErrBusy},
		{block.ErrUnavailable, rdma.ErrBusy},
	} {
		c.engine.lendErr = fmt.Errorf("lend: %w", k.from)
		if _, _, err := b.Lend(context.Background(), &cluster.BlockRef{Path: "g/x"}); !errors.Is(err, k.to) {
			t.Errorf("%v: got %v, want %v", k.from, err, k.to)
		}
	}
}

// TestServe shows the other answers to peers.
func TestServe(t *testing.T) {
	c := newCell(t, 0, nil)
	b := &backend{c.Tier}
	for i := range 10 {
		c.engine.put(tiers.Holding{Path: fmt.Sprintf("g/%d", i), Seq: uint64(i + 1)}, payload(i, 1))
	}
	c.engine.put(tiers.Holding{Path: "g", Seq: 99, Mode: modeDir | 0o755}, nil)
	var records []feed.Record
	stop := errors.New("stop")
	err := b.Snapshot(context.Background(), func(r *feed.Record) error {
		records = append(records, *r)
		if len(records) == 11 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || records[0].Hash != hashOf("g") || records[0].Mode != modeDir|0o755 || records[3].Seq != 3 || !records[3].Memory {
		t.Errorf("Snapshot: %v, %+v", err, records)
	}
	var names []string
	after, more := "", true
	for calls := 0; more; calls++ {
		var list []cluster.Name
		list, more, err = b.List(context.Background(), "g", after, 4)
		if err != nil || calls > 3 || len(list) > 4 {
			t.Fatal(err, calls, len(list))
		}
		for _, n := range list {
			names = append(names, n.Name)
			after = n.Name
		}
	}
	if !slices.Equal(names, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}) {
		t.Errorf("List: %v", names)
	}
	if s := b.Stat([]string{"g/3", "no", "g"}); s[0] == nil || s[0].Seq != 4 || s[1] != nil || s[2].Mode != modeDir|0o755 {
		t.Errorf("Stat: %v", s)
	}
	b.Observe(1234, "b")
	b.Bury("../g", false, 100)
	b.Bury("g/3", false, 5)
	b.Bury("g/4", false, 5)
	if _, ok := c.engine.Holding("g/3"); ok || c.engine.observed != 1234 {
		t.Error("Bury or Observe did not come through")
	}
	if _, ok := c.engine.Holding("g/4"); !ok {
		t.Error("a version that is not below the grave went")
	}
}

// TestWorldReadable shows that where any user of the machine can be a peer, blocks that not all
// users may read are not given, and that the log says so once.
func TestWorldReadable(t *testing.T) {
	for _, only := range []bool{true, false} {
		c := newCell(t, 0, func(o *Options) { o.WorldReadable = only })
		b := &backend{c.Tier}
		for _, tc := range []struct {
			path      string
			mode, dir uint32
			open      bool
		}{
			{"g/all", 0o644, 0o755, true}, {"g/own", 0o600, 0o755, false}, {"g/group", 0o640, 0o755, false},
			{"p/below", 0o644, 0o700, false}, {"p/group", 0o644, 0o750, false}, {"g/odd", 0o604, 0o711, true},
		} {
			c.engine.put(tiers.Holding{
				Path: tc.path, Seq: 5, Mode: modeRegular | tc.mode, Dirs: []driver.DirAttrs{{Mode: tc.dir}},
			}, payload(10, 1))
			_, loan, err := b.Lend(t.Context(), &cluster.BlockRef{Path: tc.path})
			if err == nil {
				loan.Close()
			}
			if want := tc.open || !only; (err == nil) != want || err != nil && !errors.Is(err, rdma.ErrGone) {
				t.Errorf("only %v: %s: %v, want it given: %v", only, tc.path, err, want)
			}
		}
		want := 0
		if only {
			want = 1
		}
		if n := c.logs.Len(); n != want {
			t.Errorf("only %v: %d lines in the log, want %d", only, n, want)
		}
	}
}
