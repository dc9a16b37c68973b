package rdmatest_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

// readFunc stands in for Read of p.
type readFunc = func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error

// withResult changes what reads return.
func withResult(change func(err error) error) mutant {
	return mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		return change(p.Read(ctx, r, off, n, dst))
	}}
}

// insteadOf returns a change of one kind of error to another one.
func insteadOf(from, to error) func(error) error {
	return func(err error) error {
		if errors.Is(err, from) {
			return to
		}
		return err
	}
}

// after calls f when a read has succeeded.
func after(f func(n int64, dst rdma.Dest)) mutant {
	return mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		err := p.Read(ctx, r, off, n, dst)
		if err == nil {
			f(n, dst)
		}
		return err
	}}
}

// withKey changes the key of each read.
func withKey(change func(key []byte) []byte) readFunc {
	return func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		r.Key = change(r.Key)
		return p.Read(ctx, r, off, n, dst)
	}
}

// keys are the keys given out.
type keys struct {
	mu   sync.Mutex
	list [][]byte
}

// note is mutant.region.
func (k *keys) note(r rdma.Region) rdma.Region {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, r.Remote().Key)
	return r
}

// like returns the last key given out that is like key, or key.
func (k *keys) like(key []byte, like func(have, key []byte) bool) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, have := range slices.Backward(k.list) {
		if like(have, key) {
			return have
		}
	}
	return key
}

// loose takes a key for another similar one.
func loose(like func(have, key []byte) bool) mutant {
	k := &keys{}
	return mutant{region: k.note, read: withKey(func(key []byte) []byte { return k.like(key, like) })}
}

// oneKey gives the same key to all regions.
func oneKey() mutant {
	k := &keys{}
	return mutant{
		region: func(r rdma.Region) rdma.Region { return sameKey{k.note(r)} },
		read: withKey(func(key []byte) []byte {
			if string(key) != "key" {
				return key
			}
			return k.like(key, func(_, _ []byte) bool { return true })
		}),
	}
}

type sameKey struct{ rdma.Region }

func (s sameKey) Remote() rdma.RemoteRegion {
	return rdma.RemoteRegion{Key: []byte("key"), Size: s.Region.Remote().Size}
}

// closesByFile ends all regions of a file when one is closed.
func closesByFile() mutant {
	var mu sync.Mutex
	of := map[uint64][]rdma.Region{}
	return mutant{register: func(t rdma.Transport, f *os.File, size int64) (rdma.Region, error) {
		r, err := t.Register(f, size)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		ino := info.Sys().(*syscall.Stat_t).Ino
		mu.Lock()
		defer mu.Unlock()
		of[ino] = append(of[ino], r)
		return closeAll{r, func() []rdma.Region {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(of[ino])
		}}, nil
	}}
}

type closeAll struct {
	rdma.Region
	all func() []rdma.Region
}

func (c closeAll) Close() error {
	for _, r := range c.all() {
		r.Close()
	}
	return nil
}

// mixed gets from the region of another read when several are under way.
func mixed() mutant {
	var under atomic.Int64
	var last atomic.Pointer[rdma.RemoteRegion]
	return mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		own := r
		before := last.Swap(&own)
		if under.Add(1) > 1 && before != nil {
			r = *before
		}
		defer under.Add(-1)
		return p.Read(ctx, r, off, n, dst)
	}}
}

// zeroFilled makes up the bytes that a region does not have.
func zeroFilled(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	err := p.Read(ctx, r, off, n, dst)
	if errors.Is(err, rdma.ErrProtocol) {
		_, err = dst.File.WriteAt(make([]byte, n), dst.Off)
	}
	return err
}

// orphaned leaves a read alone when its context ends.
func orphaned(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	done := make(chan error, 1)
	go func() { done <- p.Read(context.WithoutCancel(ctx), r, off, n, dst) }() // ends with the region at last
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lateReader writes to the destination of a failed read, from the end on, after the suite has begun
// to put its marks there. The region is not closed until then.
func lateReader() mutant {
	late := &lateWrites{}
	return mutant{
		read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			err := p.Read(ctx, r, off, n, dst)
			if err == nil || n < 64<<20 {
				return err
			}
			end := late.begin()
			go func() { // ends when the first mark is there
				defer end()
				b := make([]byte, 1)
				for {
					if n, err := dst.File.ReadAt(b, dst.Off+n-1); n == 1 || errors.Is(err, fs.ErrClosed) {
						break
					}
				}
				dst.File.WriteAt(make([]byte, 4096), dst.Off+n-4096)
			}()
			return err
		},
		region: func(r rdma.Region) rdma.Region { return lateRegion{r, late} },
	}
}

// lateWrites are the late writes under way. Another read may fail, and begin one, during a wait.
type lateWrites struct {
	mu    sync.Mutex
	under []chan struct{}
}

// begin notes a write; end ends it.
func (l *lateWrites) begin() (end func()) {
	over := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under = append(l.under, over)
	return func() { close(over) }
}

// wait waits for the writes that have begun.
func (l *lateWrites) wait() {
	l.mu.Lock()
	under := l.under
	l.under = nil
	l.mu.Unlock()
	for _, over := range under {
		<-over
	}
}

type lateRegion struct {
	rdma.Region
	late *lateWrites
}

func (l lateRegion) Close() error {
	l.late.wait()
	return l.Region.Close()
}

// cancelsAll ends all reads when the context of one ends.
func cancelsAll() mutant {
	var mu sync.Mutex
	under := map[context.Context]context.CancelFunc{}
	return mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		mu.Lock()
		under[own] = cancel
		mu.Unlock()
		err := p.Read(own, r, off, n, dst)
		mu.Lock()
		defer mu.Unlock()
		delete(under, own)
		if ctx.Err() != nil {
			for _, cancel := range under {
				cancel()
			}
		}
		return err
	}}
}

// closesPeers closes all peers of an address when one is closed.
func closesPeers() mutant {
	var mu sync.Mutex
	var peers []rdma.Peer
	return mutant{
		connect: func(t rdma.Transport, addr string) (rdma.Peer, error) {
			p, err := t.Connect(addr)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				peers = append(peers, p)
			}
			return p, err
		},
		close: func(rdma.Peer) error {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range peers {
				p.Close()
			}
			return nil
		},
	}
}

// TestReadMutants shows that the suite finds each fault of the parts without Get.
func TestReadMutants(t *testing.T) {
	always := func(_, _ []byte) bool { return true }
	notClosed := mutant{close: func(rdma.Peer) error { return nil }}
	notShut := mutant{shut: func(rdma.Transport) error { return nil }}
	stuck := mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		return p.Read(context.WithoutCancel(ctx), r, off, n, dst)
	}}
	find(t, []planted{
		{"messages of less than nothing", "caps", mutant{caps: func(c rdma.Caps) rdma.Caps { c.MaxMessage = -1; return c }}},
		{"rail without a name", "caps", mutant{caps: func(c rdma.Caps) rdma.Caps { c.Rails = []string{"a", ""}; return c }}},
		{"rail twice", "caps", mutant{caps: func(c rdma.Caps) rdma.Caps { c.Rails = []string{"a", "b", "a"}; return c }}},
		{"place ignored", "read sizes", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			dst.Off = 0
			return p.Read(ctx, r, off, n, dst)
		}}},
		{"hash of a read ignored", "read sizes", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			dst.Hash = nil
			return p.Read(ctx, r, off, n, dst)
		}}},
		{"a byte written behind", "read sizes", after(func(n int64, d rdma.Dest) { d.File.WriteAt([]byte{1}, d.Off+n) })},
		{"rest of the file cut off", "read sizes", after(func(n int64, d rdma.Dest) { d.File.Truncate(d.Off + n) })},
		{"file made longer", "read sizes", after(func(n int64, d rdma.Dest) { d.File.Truncate(d.Off + n + 8192) })},
		{"empty reads fail", "read sizes", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			if n == 0 {
				return rdma.ErrProtocol
			}
			return p.Read(ctx, r, off, n, dst)
		}}},
		{"whole pages written", "read pieces", after(func(n int64, d rdma.Dest) { d.File.WriteAt(make([]byte, 100), d.Off+n) })},
		{"reads mixed up", "read many", mixed()},
		{"one file is one region", "regions of one file", closesByFile()},
		{"any key opens", "read bad keys", loose(always)},
		{"end of the key not looked at", "read bad keys", loose(bytes.HasPrefix)},
		{"more than the key not looked at", "read bad keys", loose(func(have, key []byte) bool { return bytes.HasPrefix(key, have) })},
		{"nearly the key", "read bad keys", nearly()},
		{"one key for all", "read stale keys", oneKey()},
		{"bytes made up", "read size lies", mutant{read: zeroFilled}},
		{"errors of the file dropped", "read unwritable", withResult(func(err error) error {
			if errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, fs.ErrClosed) {
				return nil
			}
			return err
		})},
		{"closed regions are read", "read churn", mutant{region: func(r rdma.Region) rdma.Region { return noClose{r} }}},
		{"context not looked at first", "read cancel before", stuck},
		{"context not looked at later", "read cancel during", stuck},
		{"cancelled is unavailable", "read cancel during", withResult(insteadOf(context.Canceled, rdma.ErrUnavailable))},
		{"cancelled read writes later", "read cancel during", lateReader()},
		{"cancel is for all", "read cancel during", cancelsAll()},
		{"peer reads on", "read peer closed", notClosed},
		{"peer goes on reading", "read peer closed during", notClosed},
		{"close is for all peers", "read peer closed during", closesPeers()},
		{"transport reads on", "read transport closed", notShut},
		{"closed transport registers", "read transport closed", mutant{register: func(t rdma.Transport, f *os.File, size int64) (rdma.Region, error) {
			r, err := t.Register(f, size)
			return r, insteadOf(rdma.ErrClosed, rdma.ErrUnavailable)(err)
		}}},
		{"transport goes on reading", "read transport closed during", notShut},
		{"closed region goes on", "read region closed during", mutant{region: func(r rdma.Region) rdma.Region { return noClose{r} }}},
		{"holder goes on", "read holder dies", notShut},
		{"dead holder is our fault", "read holder dies", withResult(insteadOf(rdma.ErrUnavailable, rdma.ErrClosed))},
		{"absent holder is gone", "read holder absent", withResult(insteadOf(rdma.ErrUnavailable, rdma.ErrGone))},
		{"cut is a protocol error", "read cut", withResult(insteadOf(rdma.ErrUnavailable, rdma.ErrProtocol))},
		{"cut is waited out", "read cut", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			for {
				if err := p.Read(ctx, r, off, n, dst); !errors.Is(err, rdma.ErrUnavailable) {
					return err
				}
			}
		}}},
		{"stalled read left alone", "read stalled", mutant{read: orphaned}},
		{"stalled read not cancelled", "read stalled", stuck},
		{"region waits for a stall", "read stalled close", mutant{region: func(r rdma.Region) rdma.Region { return stuckRegion{r} }}},
	})
}

// nearly opens another region with a key that differs in one byte.
func nearly() mutant {
	k := &keys{}
	differ := func(a, b []byte) int {
		n := len(a) + len(b) - 2*min(len(a), len(b))
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	return mutant{region: k.note, read: withKey(func(key []byte) []byte {
		near := k.like(key, func(have, key []byte) bool { return differ(have, key) == 1 })
		if bytes.Equal(near, key) {
			return key
		}
		return k.like(key, func(have, _ []byte) bool { return !bytes.Equal(have, near) })
	})}
}

// stuckRegion does not close while a call waits for it.
type stuckRegion struct{ rdma.Region }

func (stuckRegion) Close() error { select {} }

// TestStallMutant shows that the suite finds a call that waits on a silent link for ever.
func TestStallMutant(t *testing.T) {
	const check = "read stall given up"
	right := mutant{givesUp: true, read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		return insteadOf(context.DeadlineExceeded, rdma.ErrUnavailable)(p.Read(short, r, off, n, dst))
	}}
	if rdmatest.Check(t, right.harness, check) {
		t.Errorf("%q fails without the fault", check)
	}
	if !rdmatest.Check(t, mutant{givesUp: true, patience: 2 * time.Second}.harness, check) {
		t.Errorf("%q does not find it", check)
	}
}
