//go:build ofi && cgo

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	ofi "github.com/kvfs/kvfs/rdma/fabric"
)

// withLibfabric gives each node a fabric over the loopback interface; the test is skipped
// where there is no library.
func withLibfabric(t *testing.T, path Path) func(o *Options) {
	return func(o *Options) {
		f, err := ofi.Open(ofi.Options{
			Provider: ofi.TCP, Devices: []string{"lo"}, CacheBytes: 16 << 20, StallTimeout: patience,
		})
		if errors.Is(err, ofi.ErrUnavailable) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		o.Fabric, o.Path, o.FabricLocal = f, path, true
	}
}

// TestLibfabric fetches small and large blocks by libfabric, loses the holder's half of it
// while blocks are being read, and reads a holder that was restarted.
func TestLibfabric(t *testing.T) {
	with := withLibfabric(t, PathAuto)
	a, b := pair(t, with)
	linked(t, b, "a", pathRDMA)
	const n = 100
	for i := range n {
		a.put(fmt.Sprintf("g/%d", i), 1, pattern(i, 1000+i))
	}
	large := pattern(3, 5<<20+17)
	a.put("g/large", 1, large)
	p := b.located(t, "g/large", 1)[0].Peer
	fetchVerified(t, p, n)
	if got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/large", Seq: 1}); err != nil || !bytes.Equal(got, large) {
		t.Errorf("large: %v", err)
	}
	if s := b.Stats(); s.FabricFetches != n+1 || s.FabricFallbacks != 0 || a.Stats().Lent != 0 {
		t.Errorf("stats %+v", s)
	}
	done := make(chan struct{})
	go func() { // ends by itself
		defer close(done)
		for range 5 {
			fetchVerified(t, p, n)
		}
	}()
	if err := a.o.Fabric.Close(); err != nil {
		t.Error(err)
	}
	<-done
	fetchVerified(t, p, n)
	linked(t, b, "a", pathTCP)
	eventually(t, "the reason is known", func() bool { m, _ := b.member("a"); return m.PathReason != "" })

	at := a.Members()[0]
	if err := a.Node.Close(); err != nil {
		t.Error(err)
	}
	again := start(t, "a", func(o *Options) {
		with(o)
		o.Gossip.Bind, o.ControlBind = at.GossipAddr, at.ControlAddr
	}, b)
	for i := range n {
		again.put(fmt.Sprintf("g/%d", i), 1, pattern(i, 1000+i))
	}
	eventually(t, "b knows of the new process", func() bool {
		m, _ := b.member("a")
		return m.BulkAddr == again.Members()[0].BulkAddr
	})
	linked(t, b, "a", pathRDMA)
	before := b.Stats().FabricFetches
	b.located(t, fmt.Sprintf("g/%d", n-1), 1)
	fetchVerified(t, b.PeerBy("a"), n)
	if b.Stats().FabricFetches == before {
		t.Error("the new process is not read by RDMA")
	}
}
