package inproc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// Network connects the transports of one process.
type Network struct {
	mu    sync.Mutex
	nodes map[string]*Transport
	links map[pair]*link
}

// pair is two addresses in alphabetic order.
type pair struct{ a, b string }

func pairOf(a, b string) pair {
	if a > b {
		a, b = b, a
	}
	return pair{a, b}
}

// link is what lies between two nodes.
type link struct {
	ctx   context.Context // ends when the link is cut
	cut   context.CancelFunc
	delay time.Duration
	still chan struct{} // not nil: nothing moves until it is closed
	// faults of the next blocks, by the address of their holder
	corrupt, truncate map[string]int
}

// NewNetwork returns a network without nodes.
func NewNetwork() *Network {
	return &Network{nodes: map[string]*Transport{}, links: map[pair]*link{}}
}

// Transport adds a node at addr that serves source, which may be nil. It fails if there is an open
// node at addr. It replaces a closed one.
func (n *Network) Transport(addr string, source rdma.Source) (*Transport, error) {
	if addr == "" {
		return nil, fmt.Errorf("inproc: no address")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nodes[addr] != nil {
		return nil, fmt.Errorf("inproc: address %s is in use", addr)
	}
	t := newTransport(n, addr, source)
	n.nodes[addr] = t
	return t, nil
}

// Cut breaks the connections between a and b. Calls under way fail with rdma.ErrUnavailable, and so
// do all others until Heal.
func (n *Network) Cut(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(a, b).cut()
}

// Heal undoes Cut, Delay, Corrupt and Truncate between a and b, and Stall for calls that begin
// after Heal.
func (n *Network) Heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(a, b).cut() // ends the context for good
	delete(n.links, pairOf(a, b))
}

// Delay makes each request between a and b take d longer.
func (n *Network) Delay(a, b string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(a, b).delay = d
}

// Stall stops the bytes between a and b without an error on either side, until resume is called.
// Calls under way end only with their contexts and with Close.
func (n *Network) Stall(a, b string) (resume func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.linkLocked(a, b)
	still := make(chan struct{})
	l.still = still
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if l.still == still {
			l.still = nil
		}
		close(still)
	})
}

// Corrupt flips one bit in the middle of each of the next count blocks that
// holder sends to reader. Empty blocks do not count.
func (n *Network) Corrupt(holder, reader string, count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(holder, reader).corrupt[holder] = count
}

// Truncate makes the next count blocks that holder sends to reader break off in the
// middle, with rdma.ErrProtocol. Empty blocks do not count.
func (n *Network) Truncate(holder, reader string, count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(holder, reader).truncate[holder] = count
}

func (n *Network) linkLocked(a, b string) *link {
	l := n.links[pairOf(a, b)]
	if l == nil {
		l = &link{corrupt: map[string]int{}, truncate: map[string]int{}}
		l.ctx, l.cut = context.WithCancel(context.Background())
		n.links[pairOf(a, b)] = l
	}
	return l
}

// path returns what a call of reader needs to reach holder.
func (n *Network) path(reader, holder string) (*Transport, context.Context, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.linkLocked(reader, holder)
	return n.nodes[holder], l.ctx, l.delay
}

// stalled returns the channel that is closed when bytes move again between the two, or nil if they
// do.
func (n *Network) stalled(reader, holder string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(reader, holder).still
}

// faults takes the faults of the next block.
func (n *Network) faults(reader, holder string) (corrupt, truncate bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.linkLocked(reader, holder)
	return take(l.corrupt, holder), take(l.truncate, holder)
}

func take(m map[string]int, holder string) bool {
	if m[holder] == 0 {
		return false
	}
	m[holder]--
	return true
}

// remove frees the address of t.
func (n *Network) remove(t *Transport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nodes[t.addr] == t {
		delete(n.nodes, t.addr)
	}
}
