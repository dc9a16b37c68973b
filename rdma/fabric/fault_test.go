//go:build ofi && cgo

package fabric

import (
	"bytes"
	"context"
	"errors"
	"hash"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestSignals shows that the handlers of the Go runtime are in place with the library loaded: a bad
// pointer can be recovered from, and signals arrive where they were asked for.
func TestSignals(t *testing.T) {
	open(t, Options{})
	func() {
		defer func() {
			if recover() == nil {
				t.Errorf("a nil pointer can be read")
			}
		}()
		var p *int
		t.Log(*p)
	}()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
		c := make(chan os.Signal, 1)
		signal.Notify(c, s)
		syscall.Kill(os.Getpid(), s)
		select {
		case <-c:
		case <-time.After(patience):
			t.Errorf("%v does not arrive", s)
		}
		signal.Stop(c)
	}
}

// TestOtherRail cuts one of two rails during its read: the other continues from there, and the
// bytes are hashed once.
func TestOtherRail(t *testing.T) {
	const size = 4 * ringSize
	n := &relays{tb: t}
	a, b := open(t, Options{}), open(t, Options{StallTimeout: patience})
	want := pattern(1, size)
	r := register(t, a, file(t, want), size)
	addr, err := parseAddress(a.Addr())
	must(t, err)
	key, err := parseKey(r.Remote().Key, 1)
	must(t, err)
	// The peer seems to have two rails, the first of which is behind a relay.
	addr.rails = append(addr.rails, addr.rails[0])
	addr.rails[0].endpoint = n.to(a.Addr(), addr.rails[0].endpoint)
	key.spots = append(key.spots, key.spots[0])
	p := newPeer(b, addr)
	defer p.Close()
	p.rails = append(p.rails, newPeerRail(p, b.rails[0], 1))
	p.turn.Store(0)
	dst := file(t, nil)
	sum := &cutHash{Hash64: block.NewChecksum(), cut: func() { n.Cut(a, b) }}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, p.Read(ctx, rdma.RemoteRegion{Key: key.encode(), Size: size}, 0, size, rdma.Dest{File: dst, Hash: sum}))
	got := make([]byte, size)
	if _, err := dst.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("wrong bytes: %v", err)
	}
	if sum.Sum64() != block.Sum(want).Sum {
		t.Error("the sum is not of what was read")
	}
	if p.rails[0].good() || !p.rails[1].good() {
		t.Errorf("the rail that was cut is good: %v, the other %v", p.rails[0].good(), p.rails[1].good())
	}
}

// cutHash cuts a connection when the first bytes have come.
type cutHash struct {
	hash.Hash64
	cut  func()
	once sync.Once
}

// Write implements hash.Hash.
func (c *cutHash) Write(p []byte) (int, error) {
	c.once.Do(c.cut)
	return c.Hash64.Write(p)
}

// TestWrongKeysBeside shows that reads with made-up keys do no harm to others.
func TestWrongKeysBeside(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	want := pattern(1, 1<<20)
	r := register(t, a, file(t, want), 1<<20)
	p := connect(t, b, a.Addr())
	key, err := parseKey(r.Remote().Key, 1)
	must(t, err)
	key.spots = []spot{{key.spots[0].base, key.spots[0].key + 1}}
	forged := rdma.RemoteRegion{Key: key.encode(), Size: 1 << 20}
	var good, bad sync.WaitGroup
	over := make(chan struct{})
	bad.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			if err := reads(t, p, forged, 0, 1000, want); !errors.Is(err, rdma.ErrProtocol) {
				t.Errorf("read with a wrong key: %v", err)
			}
		}
	})
	for i := range 4 {
		good.Go(func() {
			for j := range 10 {
				if err := reads(t, p, r.Remote(), int64(i*1000+j), 500_000, want); err != nil {
					t.Errorf("read beside one with a wrong key: %v", err)
				}
			}
		})
	}
	good.Wait()
	close(over)
	bad.Wait()
}

// TestShrunkDestination shows that a file that becomes shorter during a read is an error of the
// read, not the end of the process.
func TestShrunkDestination(t *testing.T) {
	tr := open(t, Options{})
	f := file(t, nil)
	d, err := newTarget(tr, rdma.Dest{File: f}, 1<<20, nil)
	must(t, err)
	defer d.close()
	must(t, f.Truncate(4096))
	if err := d.hash(&countHash{}); err == nil {
		t.Errorf("hash over a file that is shorter: no error")
	}
}

// countHash touches all bytes that it gets.
type countHash struct{ n uint64 }

func (c *countHash) Write(p []byte) (int, error) {
	for _, b := range p {
		c.n += uint64(b)
	}
	return len(p), nil
}
func (c *countHash) Sum(b []byte) []byte { return b }
func (c *countHash) Reset()              {}
func (c *countHash) Size() int           { return 8 }
func (c *countHash) BlockSize() int      { return 1 }
func (c *countHash) Sum64() uint64       { return c.n }
