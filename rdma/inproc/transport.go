package inproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync"

	"github.com/kvfs/kvfs/rdma"
)

// Transport implements rdma.Transport.
type Transport struct {
	net    *Network
	addr   string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		source  rdma.Source
		closed  bool
		regions map[string]*region
	}
	calls sync.WaitGroup // calls in which this node reads or holds
}

func newTransport(n *Network, addr string, source rdma.Source) *Transport {
	t := &Transport{net: n, addr: addr}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.mu.source = source
	t.mu.regions = map[string]*region{}
	return t
}

// SetSource changes the source of blocks by name; nil: none.
func (t *Transport) SetSource(s rdma.Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.source = s
}

// Caps implements rdma.Transport.
func (t *Transport) Caps() rdma.Caps {
	return rdma.Caps{Proto: "inproc", OneSided: true, Get: true, Encrypted: true}
}

// Addr implements rdma.Transport.
func (t *Transport) Addr() string { return t.addr }

// Connect implements rdma.Transport.
func (t *Transport) Connect(addr string) (rdma.Peer, error) {
	if addr == "" {
		return nil, fmt.Errorf("inproc: connect: no address")
	}
	if t.ctx.Err() != nil {
		return nil, fmt.Errorf("inproc: connect to %s: %w", addr, rdma.ErrClosed)
	}
	p := &Peer{t: t, addr: addr}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	return p, nil
}

// Register implements rdma.Transport.
func (t *Transport) Register(file *os.File, size int64) (rdma.Region, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("inproc: register: %w", err)
	}
	if size < 0 || size > info.Size() {
		return nil, fmt.Errorf("inproc: register: %d bytes of a file of %d", size, info.Size())
	}
	r := &region{t: t, key: rand.Text(), file: file, size: size}
	r.ctx, r.cancel = context.WithCancel(t.ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, fmt.Errorf("inproc: register: %w", rdma.ErrClosed)
	}
	t.mu.regions[r.key] = r
	return r, nil
}

// Close implements rdma.Transport.
func (t *Transport) Close() error {
	t.net.remove(t)
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.cancel()
	t.calls.Wait()
	return nil
}

// enter counts a call, so that Close can wait for it; false if t is closed.
func (t *Transport) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	t.calls.Add(1)
	return true
}

// lookup returns the region with this key and counts a read of it, or returns nil.
func (t *Transport) lookup(key []byte) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.mu.regions[string(key)]
	if r != nil {
		r.reads.Add(1)
	}
	return r
}

// region implements rdma.Region.
type region struct {
	t      *Transport
	key    string
	file   *os.File
	size   int64
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	reads  sync.WaitGroup // added to under t.mu only while the key is known
}

// Remote implements rdma.Region.
func (r *region) Remote() rdma.RemoteRegion {
	return rdma.RemoteRegion{Key: []byte(r.key), Size: r.size}
}

// Close implements rdma.Region.
func (r *region) Close() error {
	r.t.mu.Lock()
	delete(r.t.mu.regions, r.key)
	r.t.mu.Unlock()
	r.cancel()
	r.reads.Wait()
	return nil
}
