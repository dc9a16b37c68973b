package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/remote"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/tiers/block"
)

// testFabric is a fabric within the process that does what a test says.
type testFabric struct {
	*inproc.Transport
	proto string // not empty: instead of its own

	mu       sync.Mutex
	register func(size int64) error                                                                   // not nil: may refuse
	remote   func(r rdma.RemoteRegion) rdma.RemoteRegion                                              // not nil: what peers are told
	read     func(ctx context.Context, r rdma.RemoteRegion, next func(rdma.RemoteRegion) error) error // not nil: instead of a read of a block
	reads    int                                                                                      // of blocks
}

// Caps hides what the node must not use.
func (f *testFabric) Caps() rdma.Caps {
	c := f.Transport.Caps()
	c.Get = false
	c.Proto = "test fabric"
	if f.proto != "" {
		c.Proto = f.proto
	}
	return c
}

func (f *testFabric) Register(file *os.File, size int64) (rdma.Region, error) {
	f.mu.Lock()
	register, remote := f.register, f.remote
	f.mu.Unlock()
	if register != nil {
		if err := register(size); err != nil {
			return nil, err
		}
	}
	r, err := f.Transport.Register(file, size)
	if err == nil && remote != nil {
		r = testRegion{r, remote}
	}
	return r, err
}

type testRegion struct {
	rdma.Region
	remote func(r rdma.RemoteRegion) rdma.RemoteRegion
}

func (r testRegion) Remote() rdma.RemoteRegion { return r.remote(r.Region.Remote()) }

func (f *testFabric) Connect(addr string) (rdma.Peer, error) {
	p, err := f.Transport.Connect(addr)
	return &testLink{p, f}, err
}

type testLink struct {
	rdma.Peer
	f *testFabric
}

func (p *testLink) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	next := func(r rdma.RemoteRegion) error { return p.Peer.Read(ctx, r, off, n, dst) }
	p.f.mu.Lock()
	read := p.f.read
	if r.Size != remote.ProbeSize {
		p.f.reads++
	}
	p.f.mu.Unlock()
	if read != nil && r.Size != remote.ProbeSize {
		return read(ctx, r, next)
	}
	return next(r)
}

// set changes what it does.
func (f *testFabric) set(change func(f *testFabric)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *testFabric) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// fabricOf returns the fabric of a node.
func fabricOf(tn *testNode) *testFabric { return tn.o.Fabric.(*testFabric) }

// withFabric gives each node a fabric, all in one network.
func withFabric(t *testing.T, n *inproc.Network, path Path) func(o *Options) {
	return func(o *Options) {
		tr, err := n.Transport(o.Gossip.Name, nil)
		must(t, err)
		o.Fabric, o.Path = &testFabric{Transport: tr}, path
	}
}

// linked waits until b is at the given path to a peer.
func linked(t *testing.T, b *testNode, peer, path string) Member {
	t.Helper()
	var m Member
	eventually(t, fmt.Sprintf("path to %s is %q", peer, path), func() bool {
		m, _ = b.member(peer)
		return m.Path == path && m.PathReason != notTriedYet
	})
	return m
}

// fabricPair returns two nodes of which b reads a by the fabric.
func fabricPair(t *testing.T, path Path, change func(o *Options)) (n *inproc.Network, a, b *testNode) {
	t.Helper()
	n = inproc.NewNetwork()
	with := withFabric(t, n, path)
	a, b = pair(t, func(o *Options) {
		with(o)
		if change != nil {
			change(o)
		}
	})
	linked(t, b, "a", pathRDMA)
	return n, a, b
}

// holding has a hold g/x, and returns its data and who b reads it from. A link that is lost stays so until it is kicked.
func holding(t *testing.T, a, b *testNode) (*Peer, []byte) {
	t.Helper()
	data := pattern(3, 10_000)
	a.put("g/x", 5, data)
	p := b.located(t, "g/x", 1)[0].Peer
	p.fabric.Min, p.fabric.Max = time.Hour, time.Hour
	return p, data
}

// returned waits until a holds nothing for a peer any more.
func returned(t *testing.T, a *testNode) {
	t.Helper()
	eventually(t, "leases are given back", func() bool {
		leases, bytes := a.leases.Held()
		return a.loans() == 0 && leases == 0 && bytes == 0
	})
}

// TestFabricFetch fetches what is there and what is not by the fabric alone: in one request
// and in many, with as many leases as that takes. The transport is not used.
func TestFabricFetch(t *testing.T) {
	for _, path := range []Path{PathAuto, PathRDMA} {
		_, a, b := fabricPair(t, path, nil)
		a.put("g/empty", 6, nil)
		const n = 3*maxFetchItems + 5
		for i := range n {
			a.put(fmt.Sprintf("g/%d", i), 1, pattern(i, 1000+i))
		}
		p := b.located(t, fmt.Sprintf("g/%d", n-1), 1)[0].Peer
		for _, tc := range []struct {
			ref  BlockRef
			want error
		}{
			{BlockRef{Path: "g/7", Seq: 1}, nil}, {BlockRef{Path: "g/7", Seq: 0}, nil}, {BlockRef{Path: "g/empty", Seq: 6}, nil},
			{BlockRef{Path: "g/none", Seq: 1}, rdma.ErrGone}, {BlockRef{Path: "g/7", Seq: 2}, rdma.ErrGone}, {BlockRef{Path: "/", Seq: 1}, rdma.ErrGone},
		} {
			if _, _, err := fetchOne(t, t.Context(), p, tc.ref); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("%v: %v, want %v", tc.ref, err, tc.want)
			}
		}
		fetchVerified(t, p, n, nil)
		returned(t, a)
		s := b.Stats()
		if lent := a.Stats().Lent; lent != 0 || s.FabricFetches != n+3 || s.FabricBytes == 0 || s.FabricFallbacks != 0 || s.FabricPeers != 1 {
			t.Errorf("%d blocks by name, stats %+v", lent, s)
		}
		if m := p.Member(); m.Path != "rdma" || m.PathReason != "" || m.FetchedKeys != n+3 || m.Failures != 0 || len(m.Missing) != 0 {
			t.Errorf("member %+v", m)
		}
		if self := b.Members()[0]; self.Path != "" {
			t.Errorf("path to itself: %q", self.Path)
		}
	}
}

// fetchVerified fetches the blocks g/0 to g/n-1 at once. Each must come once: with the content pattern(i, 1000+i), or with the
// error that it is to have, if any. If that is not ErrGone, it is the caller that refuses it.
func fetchVerified(t *testing.T, p *Peer, n int, errorOf func(i int) error) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	var mu sync.Mutex
	done := map[int]int{}
	var list []*Fetch
	for i := range n {
		file, err := os.CreateTemp(dir, "")
		must(t, err)
		defer file.Close()
		var want error
		if errorOf != nil {
			want = errorOf(i)
		}
		var sum hash.Hash64
		list = append(list, &Fetch{
			BlockRef: BlockRef{Path: fmt.Sprintf("g/%d", i), Seq: 1}, Size: int64(1000 + i),
			Dest: func(*BlockInfo) (rdma.Dest, error) {
				sum = block.NewChecksum()
				return rdma.Dest{File: file, Hash: sum}, want
			},
			Done: func(_ *BlockInfo, err error) {
				data, _ := os.ReadFile(file.Name())
				mu.Lock()
				defer mu.Unlock()
				done[i]++
				if done[i] != 1 || !errors.Is(err, want) || want == nil && (err != nil || !bytes.Equal(data, pattern(i, 1000+i)) || sum.Sum64() != block.Sum(data).Sum) {
					t.Errorf("block %d: %d bytes, done %d times, %v, want %v", i, len(data), done[i], err, want)
				}
			},
		})
	}
	p.Fetch(t.Context(), list)
	if len(done) != n {
		t.Errorf("%d of %d blocks", len(done), n)
	}
}

// TestNoLink shows that a peer whose memory cannot be read is fetched from by the
// transport, or not at all where RDMA is the only path: with the reason in Member and
// once in the log.
func TestNoLink(t *testing.T) {
	for _, tc := range []struct {
		name   string
		holder func(o *Options)  // its options
		break_ func(a *testNode) // before it starts
		reason string            // begins with
		quiet  bool              // it is not for the log
		remote func(r rdma.RemoteRegion) rdma.RemoteRegion
	}{
		{name: "no fabric", holder: func(o *Options) { o.Fabric.Close(); o.Fabric, o.Path = nil, PathAuto }, reason: noRDMAThere},
		{name: "older", holder: func(o *Options) { o.tuning.mask, o.Path = meta.FeatureRDMA, PathAuto }, reason: noRDMAThere},
		{name: "switched off", holder: func(o *Options) { o.Path = PathTCP }, reason: noRDMAThere},
		{name: "another provider", holder: func(o *Options) { o.Fabric.(*testFabric).proto = "other" }, reason: anotherProvider + `: "other" there, "test fabric" here`},
		{name: "other bytes", break_: func(a *testNode) { a.fabric.Sum++ }, reason: probeFailed + ": protocol violation"},
		{name: "no proto", break_: func(a *testNode) { a.fabric.Proto = "" }, reason: probeFailed},
		{name: "strange proto", break_: func(a *testNode) { a.fabric.Proto = "a\nb" }, reason: probeFailed},
		{name: "unknown key", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Key = []byte("old"); return r }, reason: probeFailed + ": peer a: block gone"},
		{name: "no key", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Key = nil; return r }, reason: probeFailed},
		{name: "long key", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Key = make([]byte, rdma.MaxKey+1); return r }, reason: probeFailed},
		{name: "no size", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Size = 0; return r }, reason: probeFailed},
		{name: "negative size", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Size = -1; return r }, reason: probeFailed},
		{name: "absurd size", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Size = 1 << 60; return r }, reason: probeFailed},
		{name: "shorter than it says", remote: func(r rdma.RemoteRegion) rdma.RemoteRegion { r.Size++; return r }, reason: probeFailed},
	} {
		for _, path := range []Path{PathAuto, PathRDMA} {
			t.Run(fmt.Sprint(tc.name, " ", path), func(t *testing.T) {
				with := withFabric(t, inproc.NewNetwork(), path)
				a := prepare(t, "a", func(o *Options) {
					with(o)
					o.Fabric.(*testFabric).remote = tc.remote
					if tc.holder != nil {
						tc.holder(o)
					}
				})
				if tc.break_ != nil {
					tc.break_(a)
				}
				must(t, a.Start(a.fakeBackend))
				b := start(t, "b", with, a)
				together(t, a, b)
				checkNoLink(t, a, b, path, tc.reason)
			})
		}
	}
}

// checkNoLink fetches from a without a link to it.
func checkNoLink(t *testing.T, a, b *testNode, path Path, reason string) {
	t.Helper()
	want := pathTCP
	if path == PathRDMA {
		want = ""
	}
	m := linked(t, b, "a", want)
	if !strings.HasPrefix(m.PathReason, reason) {
		t.Errorf("reason %q, want %q", m.PathReason, reason)
	}
	data := pattern(2, 3000)
	a.put("g/x", 5, data)
	p := b.located(t, "g/x", 1)[0].Peer
	got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
	if path == PathRDMA {
		if !errors.Is(err, rdma.ErrUnavailable) || a.Stats().Lent != 0 || p.Usable() {
			t.Errorf("fetched without RDMA: %v, %d lent, usable %v", err, a.Stats().Lent, p.Usable())
		}
	} else if err != nil || !bytes.Equal(got, data) || !p.Usable() || a.Stats().Lent != 1 {
		t.Errorf("not fetched by TCP: %v, %d lent", err, a.Stats().Lent)
	}
	for s, more := p.live(), 2; more > 0 && s.features&meta.FeatureRDMA != 0; more-- { // failures of the same kind
		if p.links.open(s) != nil {
			t.Error("there is a link after all")
		}
	}
	told := func() int { return b.logs.FilterMessageSnippet("peer without RDMA").FilterFieldKey("reason").Len() }
	eventually(t, "the log is told", func() bool { return told() > 0 }) // by who made Member say it, or is about to
	if n := told(); n != 1 {
		t.Errorf("%d lines in the log, want one", n)
	}
	if n := b.logs.FilterMessageSnippet("lacks a feature").Len(); n != 0 {
		t.Errorf("it is told as a feature %d times", n)
	}
	if s := b.Stats(); s.FabricFetches != 0 || s.FabricPeers != 0 || len(m.Missing) != 0 {
		t.Errorf("stats %+v, missing %v", s, m.Missing)
	}
}

// TestPathTCP shows that a node whose path is TCP neither uses its fabric nor lets others.
func TestPathTCP(t *testing.T) {
	n := inproc.NewNetwork()
	a, b := pair(t, withFabric(t, n, PathTCP))
	a.put("g/x", 5, pattern(2, 3000))
	p := b.located(t, "g/x", 1)[0].Peer
	if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5}); err != nil {
		t.Error(err)
	}
	m := linked(t, b, "a", pathTCP)
	if m.PathReason != "" || p.Can(meta.FeatureRDMA) || fabricOf(b).count() != 0 || b.logs.FilterMessageSnippet("RDMA").Len() != 0 {
		t.Errorf("%+v", m)
	}
	if _, err := p.live().control.Describe(t.Context(), nil); err == nil {
		t.Error("it describes its fabric")
	}
}

// TestFabricOptions shows what Open says of a fabric that cannot be used.
func TestFabricOptions(t *testing.T) {
	refuse := func(o *Options) {
		withFabric(t, inproc.NewNetwork(), o.Path)(o)
		o.Fabric.(*testFabric).register = func(int64) error { return errors.New("memlock") }
	}
	exposed := func(o *Options) {
		withFabric(t, inproc.NewNetwork(), PathAuto)(o)
		o.Fabric = plainFabric{o.Fabric}
	}
	for name, tc := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"no fabric":       {func(o *Options) { o.Path = PathRDMA }, "there is no fabric"},
		"unknown path":    {func(o *Options) { o.Path = 3 }, "path 3"},
		"two-sided":       {func(o *Options) { o.Fabric = o.Transport }, "cannot read one-sided"},
		"negative":        {func(o *Options) { o.FabricBytes = -1 }, "leases of -1 bytes"},
		"exposed":         {exposed, "other machines may reach it, and there is no TLS"},
		"insecure":        {func(o *Options) { exposed(o); o.Insecure = true }, ""},
		"local":           {func(o *Options) { exposed(o); o.FabricLocal = true }, ""},
		"turned off":      {func(o *Options) { exposed(o); o.Path = PathTCP }, ""},
		"not lockable":    {func(o *Options) { o.Path = PathRDMA; refuse(o) }, "fabric: memlock"},
		"does not matter": {refuse, ""},
	} {
		t.Run(name, func(t *testing.T) {
			good := prepare(t, "a", nil) // for its options
			good.Node.Close()
			tr, err := inproc.NewNetwork().Transport("t", nil)
			must(t, err)
			o := good.o
			o.Transport = twoSided{tr}
			tc.change(&o)
			n, err := Open(t.Context(), o)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("got %v, want %q", err, tc.want)
				}
				return
			}
			must(t, err)
			if name == "does not matter" && (n.self.Features&meta.FeatureRDMA != 0 || n.FabricErr() == nil || good.logs.FilterMessageSnippet("no RDMA").Len() != 1) {
				t.Errorf("features %v, %v", meta.FeatureNames(n.self.Features), n.FabricErr())
			}
			n.Close()
		})
	}
}

// plainFabric is a fabric that encrypts nothing.
type plainFabric struct{ rdma.Transport }

func (f plainFabric) Caps() rdma.Caps {
	c := f.Transport.Caps()
	c.Encrypted = false
	return c
}

// twoSided is a transport that cannot read one-sided.
type twoSided struct{ rdma.Transport }

func (t twoSided) Caps() rdma.Caps { return rdma.Caps{Proto: "two-sided", Get: true, Encrypted: true} }
