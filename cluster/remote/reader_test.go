package remote

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// counted is a peer that counts the bytes that have come by it.
type counted struct {
	rdma.Peer
	moved atomic.Int64
	read  func(ctx context.Context) error
}

func (c *counted) Moved() int64 { return c.moved.Load() }

func (c *counted) Read(ctx context.Context, _ rdma.RemoteRegion, _, _ int64, _ rdma.Dest) error {
	return c.read(ctx)
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
			peer := &counted{}
			r := &Reader{m: NewMemory(peer, nil), limit: limit}
			r.reads, r.end = context.WithCancelCause(t.Context())
			r.mu.timer = time.AfterFunc(limit, r.look)
			defer r.mu.timer.Stop()
			r.mu.since = time.Now().Add(-tc.quiet)
			if tc.left != 0 {
				r.mu.latest = time.Now().Add(tc.left)
			}
			if tc.moves {
				peer.moved.Store(1)
			}
			r.look()
			if ended := errors.Is(context.Cause(r.reads), ErrStalled); ended != tc.ended || r.Hurried() != tc.hurried {
				t.Errorf("ended %v, hurried %v", ended, r.Hurried())
			}
			if r.Came(); time.Until(r.mu.latest) < limit/2 && !r.mu.latest.IsZero() {
				t.Errorf("a block came, but the next one has only until %v", r.mu.latest)
			}
			r.mu.since = r.mu.since.Add(-limit)
			if r.look(); context.Cause(r.reads) == nil {
				t.Error("not ended though nothing has come since")
			}
		})
	}
}

// TestReader shows when a Reader ends a read, and with which error. A block comes after a second. The
// next one does not come, whether bytes come meanwhile or not.
func TestReader(t *testing.T) {
	const stall = 4 * time.Second
	for _, tc := range []struct {
		name    string
		limits  Limits        // but for Expires
		caller  time.Duration // its time; 0: no end
		moves   bool          // bytes come
		err     error
		after   time.Duration
		hurried bool
	}{
		{"nothing comes", Limits{Stall: stall}, 0, false, ErrStalled, 5 * time.Second, false},
		{"large blocks", Limits{Stall: stall, Bytes: 3 * slowest}, 0, false, ErrStalled, 8 * time.Second, false},
		{"bytes come", Limits{Stall: stall}, 0, true, ErrExpired, time.Hour, false},
		{"half of the time", Limits{Stall: stall}, time.Minute, true, ErrStalled, 30 * time.Second, true},
		{"no other way", Limits{Stall: stall, Only: true}, time.Minute, true, context.DeadlineExceeded, time.Minute, false},
		{"little time", Limits{Stall: 2 * stall}, 10 * time.Second, false, ErrStalled, 6 * time.Second, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, begun, peer := t.Context(), time.Now(), &counted{}
				if tc.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.caller)
					defer cancel()
				}
				tc.limits.Expires = begun.Add(time.Hour)
				r := NewMemory(peer, nil).Reader(ctx, tc.limits)
				defer r.Close()
				peer.read = func(context.Context) error {
					time.Sleep(time.Second) // reason: the fake clock
					return nil
				}
				if err := r.Read(rdma.RemoteRegion{}, 1, rdma.Dest{}); err != nil {
					t.Fatal(err)
				}
				r.Came()
				peer.read = func(ctx context.Context) error {
					for ctx.Err() == nil {
						select {
						case <-time.After(time.Second):
							if tc.moves {
								peer.moved.Add(1)
							}
						case <-ctx.Done():
						}
					}
					return ctx.Err()
				}
				err := r.Read(rdma.RemoteRegion{}, 1, rdma.Dest{})
				if after := time.Since(begun); !errors.Is(err, tc.err) || after != tc.after || r.Hurried() != tc.hurried {
					t.Errorf("after %v, hurried %v: %v", after, r.Hurried(), err)
				}
			})
		})
	}
}
