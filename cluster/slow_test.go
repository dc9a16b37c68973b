package cluster

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// Moved tells what the test says.
func (p *testLink) Moved() int64 {
	p.f.mu.Lock()
	moved := p.f.moved
	p.f.mu.Unlock()
	if moved == nil {
		return 0
	}
	return moved()
}

// TestSlowLink shows that a block that takes long is waited for as long as bytes come by the
// link, of whatever is read by it: a link that is shared by many does not stand still.
func TestSlowLink(t *testing.T) {
	for _, path := range []Path{PathAuto, PathRDMA} {
		const stall = 10 * time.Millisecond
		_, a, b := fabricPair(t, path, func(o *Options) { o.tuning.stall = stall })
		data := pattern(3, 10_000)
		a.put("g/x", 5, data)
		p := b.located(t, "g/x", 1)[0].Peer
		var bytesCame atomic.Int64
		fabricOf(b).set(func(f *testFabric) {
			f.moved = func() int64 { return bytesCame.Add(1) }
			f.read = func(ctx context.Context, r rdma.RemoteRegion, next func(rdma.RemoteRegion) error) error {
				select {
				case <-time.After(20 * stall): // reason: this is the slow link
					return next(r)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		got, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 5})
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%v: %v", path, err)
		}
		if s := b.Stats(); s.FabricFetches != 1 || s.FabricFallbacks != 0 || a.Stats().Lent != 0 {
			t.Errorf("%v: stats %+v", path, s)
		}
		if m := p.Member(); m.Path != pathRDMA || m.PathReason != "" {
			t.Errorf("%v: member %+v", path, m)
		}
		returned(t, a)
	}
}
