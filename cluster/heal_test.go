package cluster

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestFarVersions shows that a node whose versions are beyond those that any clock gives is not believed
// about them, neither blocks nor graves, that one warning tells of it, and that the rest
// of what it tells counts.
func TestFarVersions(t *testing.T) {
	nodes := cluster(t, "a", "b")
	a, b := nodes[0], nodes[1]
	const far = block.MaxSeq + 1
	a.put("g/far", far, nil)
	a.remove("g/gone", far)
	a.put("g/x", 5, nil)
	b.located(t, "g/x", 1)
	b.located(t, "g/far", 0)
	if seq := b.buriedSeq("g/gone"); seq != 0 || b.Index().Buried(location.HashPath("g/gone")) != 0 {
		t.Errorf("buried below %d", seq)
	}
	if n := b.Stats().FarVersion; n < 2 { // exchanges of graves bring one again
		t.Errorf("%d counted, want 2 or more", n)
	}
	if n := b.logs.FilterMessageSnippet("higher than any clock gives").Len(); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
}

// TestEndedCall shows that a call which the peer ends, as a feed that it has too many of, does not count as a failure of it.
func TestEndedCall(t *testing.T) {
	a := prepare(t, "a", nil)
	p := a.newPeer("b")
	for range 2 * breaker.Threshold {
		err := control.Error(t.Context(), status.Error(codes.Canceled, "overtaken"))
		if !errors.Is(err, rdma.ErrUnavailable) {
			t.Fatal(err)
		}
		p.outcome(p.control, err)
	}
	if p.control.State() != "closed" || p.failures.Load() != 0 {
		t.Error("a call that the peer ended counts as a failure of it")
	}
}

// TestNoCopies shows that a node that takes no copies is offered none, without a warning,
// and may offer its own.
func TestNoCopies(t *testing.T) {
	a := start(t, "a", func(o *Options) { o.NoCopies = true })
	b := start(t, "b", func(o *Options) { o.Require = []string{"store"} }, a)
	together(t, a, b)
	if b.PeerBy("a").Can(meta.FeatureStore) || !b.PeerBy("a").Can(meta.FeatureGet|meta.FeatureList) {
		t.Error("b thinks that a takes copies")
	}
	if !a.PeerBy("b").Can(meta.FeatureStore) {
		t.Error("a cannot offer copies")
	}
	if m, _ := b.member("a"); len(m.Missing) != 0 || len(m.Features) != len(meta.FeatureNames(meta.AllFeatures))-2 {
		t.Errorf("%+v", m)
	}
	if n := b.logs.FilterMessageSnippet("lacks a feature").Len(); n != 0 {
		t.Errorf("%d warnings", n)
	}
	a.put("g/x", 5, pattern(1, 100))
	if o := a.PeerBy("b").Store(t.Context(), []BlockInfo{{Path: "g/x", Seq: 5, Mode: 0o100644}}); o[0].Status != StoreDone {
		t.Errorf("%+v", o)
	}
}

// TestRefusedQuiet shows that what a refused node tells of itself does not keep what it
// held from being forgotten.
func TestRefusedQuiet(t *testing.T) {
	a := prepare(t, "a", nil)
	p := a.newPeer("b")
	p.setTarget(stateAlive, "", "x:1", &meta.Meta{})
	<-p.wake
	p.setTarget(stateRefused, "old", "x:1", nil)
	<-p.wake
	p.setTarget(stateRefused, "old", "x:1", nil)
	if len(p.wake) != 0 {
		t.Error("woken though nothing changed")
	}
	p.setTarget(stateAlive, "", "x:1", &meta.Meta{})
	if len(p.wake) != 1 {
		t.Error("not woken by its return")
	}
}
