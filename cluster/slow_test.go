package cluster

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/remote"
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

// TestLook shows when reads are ended though no block has come.
func TestLook(t *testing.T) {
	const limit = time.Hour
	for _, tc := range []struct {
		name    string
		moves   bool          // bytes come
		quiet   time.Duration // for which nothing came before
		left    time.Duration // until the other way is to be tried; 0: there is none
		ended   bool
		hurried bool // it says nothing of the link
	}{
		{"nothing comes", false, limit, 0, true, false},
		{"nothing comes, and there is time", false, limit, limit, true, false},
		{"nothing comes, and there is no time", false, limit, -1, true, false},
		{"nothing came lately", false, limit / 2, limit, false, false},
		{"nothing came lately, and there is no time", false, limit / 2, -1, true, true},
		{"bytes come", true, limit, 0, false, false},
		{"bytes come, and there is time", true, limit, limit, false, false},
		{"bytes come, and there is no time", true, limit, -1, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var moved int64
			f := &testFabric{moved: func() int64 { return moved }}
			r := &oneSided{l: &link{Memory: remote.NewMemory(&testLink{f: f}, nil)}, limit: limit}
			r.reads, r.end = context.WithCancelCause(t.Context())
			r.mu.timer = time.AfterFunc(limit, r.look)
			defer r.mu.timer.Stop()
			r.mu.since = time.Now().Add(-tc.quiet)
			if tc.left != 0 {
				r.mu.latest = time.Now().Add(tc.left)
			}
			if tc.moves {
				moved = 1
			}
			r.look()
			if ended := errors.Is(context.Cause(r.reads), errStalled); ended != tc.ended || r.hurried != tc.hurried {
				t.Errorf("ended %v, hurried %v", ended, r.hurried)
			}
			if r.came(); time.Until(r.mu.latest) < limit/2 && !r.mu.latest.IsZero() {
				t.Errorf("a block came, but the next one has only until %v", r.mu.latest)
			}
			r.mu.since = r.mu.since.Add(-limit)
			if r.look(); context.Cause(r.reads) == nil {
				t.Error("not ended though nothing has come since")
			}
		})
	}
}
