package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers/block"
)

// otherProto is a transport of another protocol.
type otherProto struct{ *tcp.Transport }

func (otherProto) Caps() rdma.Caps { return rdma.Caps{Proto: "pigeon", Get: true} }

// TestRefused shows that nodes that cannot be peers are shown with a reason that
// names what is wrong, are not talked to, and have their calls refused (D8).
func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		change       func(o *Options)
	}{
		{"newer protocol", "speaks protocol 9 to 10, this node 1 to 1", func(o *Options) { o.tuning.protocol, o.tuning.minProtocol = 10, 9 }},
		{"other transport", `moves bytes by "pigeon", this node by "tcp"`, func(o *Options) {
			tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0"})
			must(t, err)
			o.Transport = otherProto{tr}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := start(t, "a", nil)
			b := start(t, "b", tc.change, a)
			var m Member
			eventually(t, "a refuses b", func() bool { m, _ = a.member("b"); return m.State == stateRefused && m.Reason != "no meta" })
			if m.Reason != tc.reason {
				t.Errorf("reason %q, want %q", m.Reason, tc.reason)
			}
			if a.PeerBy("b") != nil || len(a.Peers()) != 0 {
				t.Error("a refused node is a peer")
			}
			// The other way it is refused, too: here by its own look at a's meta, so that the
			// call must be made by hand.
			conn, err := b.dial("a", a.self.Control)
			must(t, err)
			defer conn.Close()
			_, err = wire.NewControlClient(conn).Stat(t.Context(), &wire.StatRequest{})
			if !errors.Is(control.Error(t.Context(), err), rdma.ErrUnavailable) || a.Stats().Denied == 0 {
				t.Errorf("a call of a refused node: %v", err)
			}
		})
	}
}

// TestNewerPeer shows that a peer of a newer version that still understands ours is one
// (D8): features and fields that we do not know do not matter.
func TestNewerPeer(t *testing.T) {
	a := start(t, "a", nil)
	b := start(t, "b", func(o *Options) { o.tuning.protocol, o.tuning.minProtocol = 10, 1 }, a)
	together(t, a, b)
	if m, _ := a.member("b"); m.Protocol != 10 || len(m.Missing) != 0 {
		t.Errorf("%+v", m)
	}
}

// TestOlderPeer shows that a peer that lacks features is served without them: with one
// warning for each, which names feature, peer and version, and is shown in its Member
// (D5, D7, D9, D12). What the peer cannot do is not asked of it; no error is
// swallowed for it (D6).
func TestOlderPeer(t *testing.T) {
	a := start(t, "a", nil)
	var free atomic.Int64
	tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0", StallTimeout: patience})
	must(t, err)
	old := start(t, "old", func(o *Options) {
		o.Transport = noGetter{tr}
		o.Version = "v0.1"
		o.Capacity = func() (int64, int64) { return 100, free.Load() }
		o.tuning.mask = meta.FeatureStore | meta.FeatureBury | meta.FeatureList | meta.FeatureResume | meta.FeatureMemory | meta.FeatureDigest | meta.FeatureFind
	}, a)
	tr.SetSource(nil) // it really does not know names
	together(t, a, old)

	warned := meta.FeatureNames(meta.AllFeatures &^ meta.FeatureRDMA) // which this node lacks, too
	m, _ := a.member("old")
	if !slices.Equal(m.Missing, warned) || len(m.Features) != 0 || m.State != stateAlive {
		t.Errorf("member %+v", m)
	}
	p := a.PeerBy("old")
	for _, name := range meta.FeatureNames(meta.AllFeatures) {
		f, _ := meta.ParseFeatures([]string{name})
		if p.Can(f) {
			t.Errorf("Can(%s)", name)
		}
	}

	data := pattern(1, 5000)
	old.put("g/x", 5, data)
	at := a.located(t, "g/x", 1)[0]
	if at.Memory {
		t.Error("it told what is in memory")
	}
	if got, _, err := fetchOne(t, t.Context(), at.Peer, BlockRef{Path: "g/x", Seq: 5}); err != nil || string(got) != string(data) {
		t.Errorf("get: by lease: %v", err)
	}
	a.put("g/y", 6, data)
	o := p.Store(t.Context(), []BlockInfo{{Path: "g/y", Seq: 6}})
	if len(o) != 1 || o[0].Status != StoreRefused || !errors.Is(o[0].Err, block.ErrReadOnly) {
		t.Errorf("store: %+v", o)
	}
	if err := p.List(t.Context(), "g", func(Name) bool { return true }); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	if list, err := p.Stat(t.Context(), []string{"g/x", "g/none"}); err != nil || list[0] == nil || list[1] != nil {
		t.Errorf("stat, which all have: %v %v", list, err)
	}
	a.remove("g/x", 20)
	a.located(t, "g/x", 0)
	if old.buriedSeq("g/x") != 0 {
		t.Error("bury: it was told")
	}
	if p.Member().Failures != 0 {
		t.Errorf("what it lacks was asked of it: %s", p.Member().LastError)
	}
	for _, n := range []int64{10, 20, 30} {
		free.Store(n)
		eventually(t, "the new meta arrives", func() bool { m, _ := a.member("old"); return m.FreeBytes == n })
	}
	for _, name := range warned {
		n := 0
		for _, e := range a.logs.FilterMessageSnippet("lacks a feature").All() {
			c := e.ContextMap()
			if c["feature"] == name && c["peer"] == "old" && c["version"] == "v0.1" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d warnings about %s, want one", n, name)
		}
	}
}

// TestRequire shows that a peer that lacks what is required is refused, and that the
// node says so while it starts (D9); later it goes on without that peer.
func TestRequire(t *testing.T) {
	old := start(t, "old", func(o *Options) { o.Version = "v0.1"; o.tuning.mask = meta.FeatureStore })
	a := start(t, "a", func(o *Options) { o.Require, o.tuning.initial = []string{"bury", "store"}, time.Hour }, old)
	select {
	case err := <-a.Fatal():
		for _, part := range []string{"peer old", "version v0.1", "lacks required feature store"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	case <-time.After(patience):
		t.Fatal("not fatal")
	}
	if m, _ := a.member("old"); m.State != stateRefused || m.Reason != "lacks required feature store" {
		t.Errorf("member %+v", m)
	}
	late := start(t, "late", func(o *Options) { o.Require = []string{"store"}; o.tuning.initial = time.Nanosecond })
	again := start(t, "old2", func(o *Options) { o.tuning.mask = meta.FeatureStore }, late)
	eventually(t, "late refuses the older node", func() bool { m, _ := late.member("old2"); return m.State == stateRefused })
	select {
	case err := <-late.Fatal():
		t.Errorf("fatal long after the start: %v", err)
	default:
	}
	again.Node.Close()
}

// FuzzMeta: no meta panics or makes a member that cannot be shown; what encodes decodes.
func FuzzMeta(f *testing.F) {
	good := meta.Meta{Protocol: 1, MinProtocol: 1, Features: meta.AllFeatures, Control: "h:1", Bulk: "h:2", BulkProto: "tcp", Zone: "z", Version: "v", Total: 5, Free: 4}
	b, err := good.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Add([]byte("\x08"))
	f.Add(append(b, 0xfa, 0x3f, 0x01, 'x')) // a field of the future
	for _, m := range []*wire.Meta{
		{Protocol: 1, MinProtocol: 2}, {Protocol: 1, MinProtocol: 1, Control: "nohost"}, {Protocol: 1, Control: "h:0", Bulk: "b"},
		{Protocol: 1, Control: "h:1", Bulk: "b", TotalBytes: -1}, {Protocol: 1, Control: "h:1", Bulk: "b\x00"},
		{Protocol: 1, Control: "h:1", Bulk: "b", Zone: strings.Repeat("z", 200)},
	} {
		b, _ := proto.Marshal(m)
		f.Add(b)
	}
	n := &Node{self: meta.Meta{Protocol: 1, MinProtocol: 1, BulkProto: "tcp"}}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := meta.Decode(b)
		if err != nil {
			return
		}
		if reason, _ := n.judge(&m); reason != "" {
			return
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatalf("accepted but does not encode: %v", err)
		}
		if o, err := meta.Decode(again); err != nil || o != m {
			t.Fatalf("%+v became %+v, %v", m, o, err)
		}
	})
}

// TestBadMeta shows that a node whose meta makes no sense is refused and counted, and
// taken when it makes sense.
func TestBadMeta(t *testing.T) {
	a := start(t, "a", nil)
	g, err := gossip.Open(gossip.Options{
		Name: "odd", Bind: "127.0.0.1:0", Profile: "local", Join: []string{a.gossip.Self().Addr}, Meta: []byte("\xff\xff"),
	})
	must(t, err)
	defer g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	must(t, g.Join(ctx))
	eventually(t, "odd is refused", func() bool { m, _ := a.member("odd"); return m.State == stateRefused })
	if a.Stats().BadMeta == 0 {
		t.Error("not counted")
	}
	b, _ := proto.Marshal(&wire.Meta{Protocol: 1, MinProtocol: 1, Control: "127.0.0.1:1", BulkProto: "tcp"})
	must(t, g.SetMeta(b))
	eventually(t, "the reason is another", func() bool { m, _ := a.member("odd"); return m.Reason == "meta: no bulk address" })
	b, _ = a.self.Encode()
	must(t, g.SetMeta(b))
	eventually(t, "odd is alive", func() bool { m, _ := a.member("odd"); return m.State == stateAlive })
}
