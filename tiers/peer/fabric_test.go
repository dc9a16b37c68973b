package peer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/tiers"
)

// hookedFabric calls hook before each read.
type hookedFabric struct {
	rdma.Transport
	hook func()
}

func (f *hookedFabric) Connect(addr string) (rdma.Peer, error) {
	p, err := f.Transport.Connect(addr)
	return hookedPeer{p, f}, err
}

type hookedPeer struct {
	rdma.Peer
	f *hookedFabric
}

func (p hookedPeer) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	p.f.hook()
	return p.Peer.Read(ctx, r, off, n, dst)
}

// freedFiles records the files that an engine has freed.
type freedFiles struct {
	mu   sync.Mutex
	seen map[[2]uint64]bool
}

func (f *freedFiles) add(dev, ino uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[[2]uint64{dev, ino}] = true
}

func (f *freedFiles) has(fi os.FileInfo) bool {
	st := fi.Sys().(*syscall.Stat_t)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[[2]uint64{st.Dev, st.Ino}]
}

// file is the file of the block of that name in the memory of f.
func (f *fullNode) file(name string) os.FileInfo {
	f.t.Helper()
	l, err := f.engine.Lend(f.t.Context(), tiers.LendOptions{Path: name})
	if err != nil {
		f.t.Fatal(err)
	}
	defer l.Close()
	fi, err := l.File.Stat()
	if err != nil {
		f.t.Fatal(err)
	}
	return fi
}

// evict evicts a block from the memory of f. It reports whether the block left within a short
// attempt.
func (f *fullNode) evict(name string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	// Only the eviction counts, not whether the time was over by then.
	r, _ := f.engine.EvictFrom(ctx, tiers.EvictRequest{Tier: "memory", Paths: []string{name}, Force: true})
	return r.Blocks == 1
}

// TestEnginesByFabric shows that engines read each other's blocks one-sided, and only so, that a
// holder keeps a block in memory during a read, and not after, and that it reports the file when it
// goes, before another file can have its number.
func TestEnginesByFabric(t *testing.T) {
	network := inproc.NewNetwork()
	fabric := func(name string) *hookedFabric {
		tr, err := network.Transport(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &hookedFabric{Transport: tr, hook: func() {}}
	}
	freed := &freedFiles{seen: map[[2]uint64]bool{}}
	a := startFullWith(t, "a", nil, fabric("a"), freed.add)
	reader := fabric("b")
	var reading func()
	reader.hook = func() {
		if reading != nil {
			reading()
		}
	}
	b := startFullWith(t, "b", nil, reader, nil, a.node)
	eventually(t, "b reads a by RDMA", func() bool {
		for _, m := range b.node.Members() {
			if m.Name == "a" && m.Path == "rdma" && m.Feed == "following" {
				return true
			}
		}
		return false
	})
	const n = 10
	for i := range n {
		a.write(fmt.Sprint("x", i), payload(200000, byte(i)))
	}
	file := a.file("x3")
	asked, evicted := false, false
	for i := range n {
		name := fmt.Sprint("x", i)
		if i == 3 {
			reading = func() { asked, evicted = true, evicted || a.evict("x3") || freed.has(file) }
		}
		eventually(t, name+" is read", func() bool {
			got, err := b.read(name)
			return err == nil && bytes.Equal(got, payload(200000, byte(i)))
		})
		if i == 3 {
			if !asked || evicted {
				t.Errorf("evicted while it was read: %v", evicted)
			}
			eventually(t, "x3 goes when it is given back", func() bool { return a.evict("x3") })
			if !freed.has(file) {
				t.Error("nobody was told")
			}
			reading = nil
		}
	}
	as, bs := a.node.Stats(), b.node.Stats()
	if as.Lent != 0 || bs.FabricFetches != n || bs.FabricBytes != n*200000 || bs.FabricFallbacks != 0 {
		t.Errorf("%d blocks by name; %+v", as.Lent, bs)
	}
	eventually(t, "all leases are given back", func() bool { return a.node.Stats().Leases == 0 })
}
