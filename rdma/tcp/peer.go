package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// confirmDelay is how long a connection may be unused before a frame of its own confirms its last
// blocks. Until then the next request confirms them for free.
const confirmDelay = time.Millisecond

// Peer implements rdma.Peer and rdma.Getter. Each call has its own connection. When all allowed
// connections are in use, calls wait for one in their order.
type Peer struct {
	t    *Transport
	addr string

	// ctx ends with Close. It is the parent of dials.
	ctx    context.Context
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		closed  bool
		open    int                // connections and dials under way
		idle    []*conn            // the longest unused first
		busy    map[*conn]struct{} // owned by a call or by the confirmation timer
		waiting []chan grant       // calls without a connection, in their order
	}
}

// grant is a connection, or a permit to dial one.
type grant struct{ conn *conn }

func newPeer(t *Transport, addr string) *Peer {
	p := &Peer{t: t, addr: addr}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	p.mu.busy = map[*conn]struct{}{}
	return p
}

// Get implements rdma.Getter.
func (p *Peer) Get(ctx context.Context, items []*rdma.Item) error {
	asks := make([]ask, len(items))
	err := checkItems(items)
	for i, item := range items {
		asks[i] = ask{kind: kindGet, name: item.Name, accept: item.Accept, done: item.Done}
	}
	answered := 0
	if err == nil {
		answered, err = p.ask(ctx, asks)
	}
	for _, item := range items[answered:] {
		item.Done(err)
	}
	return err
}

// checkItems checks the limits of what travels.
func checkItems(items []*rdma.Item) error {
	if len(items) > rdma.MaxItems {
		return fmt.Errorf("tcp: get of %d items, %d is the limit", len(items), rdma.MaxItems)
	}
	for _, item := range items {
		if len(item.Name) > rdma.MaxName {
			return fmt.Errorf("tcp: get of a name of %d bytes, %d is the limit", len(item.Name), rdma.MaxName)
		}
	}
	return nil
}

// Read implements rdma.Peer.
func (p *Peer) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	if off < 0 || n < 0 || off+n < 0 || off+n > r.Size || len(r.Key) > maxKey {
		return fmt.Errorf("tcp: read of %d bytes at %d of a region of %d", n, off, r.Size)
	}
	var result error
	a := ask{kind: kindRead, name: r.Key, off: off, n: n}
	a.accept = func(_ []byte, size int64) (rdma.Dest, error) { return dst, nil }
	a.done = func(err error) { result = err }
	if _, err := p.ask(ctx, []ask{a}); err != nil {
		return err
	}
	return result
}

// ask gets asks answered in their order and returns how many were. The error concerns the others.
func (p *Peer) ask(ctx context.Context, asks []ask) (int, error) {
	if err := p.t.enter(); err != nil {
		return 0, fmt.Errorf("peer %s: %w", p.addr, err)
	}
	defer p.t.wg.Done()
	answered := 0
	fresh := false // only a new connection will do
	for answered < len(asks) {
		c, err := p.acquire(ctx, fresh)
		if err != nil {
			return answered, p.explain(ctx, err)
		}
		n, err := c.exchange(ctx, asks[answered:])
		answered += n
		// A reused connection may have been dead all along, for instance because the peer has
		// restarted: that is no reason to fail.
		stale := err != nil && c.reused && !c.heard && !errors.Is(err, rdma.ErrProtocol)
		p.release(c, err)
		switch {
		case err == nil || errors.Is(err, errUnwanted):
		case stale && ctx.Err() == nil && p.ctx.Err() == nil:
			fresh = true
		default:
			return answered, p.explain(ctx, err)
		}
	}
	return answered, nil
}

// explain returns err, the reason why a connection failed, with its kind.
func (p *Peer) explain(ctx context.Context, err error) error {
	switch {
	case p.ctx.Err() != nil:
		err = rdma.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, rdma.ErrProtocol):
		p.t.noteProtocol(p.addr, err)
	case !errors.Is(err, rdma.ErrUnavailable):
		p.t.counters.broken.Add(1)
		err = fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
	}
	return fmt.Errorf("peer %s: %w", p.addr, err)
}

// acquire returns a connection for the caller alone. fresh: a newly dialled one.
func (p *Peer) acquire(ctx context.Context, fresh bool) (*conn, error) {
	for {
		g, err := p.claim(ctx, fresh)
		if err != nil {
			return nil, err
		}
		if g.conn == nil {
			return p.dial(ctx)
		}
		if g.conn.usable() && !fresh {
			g.conn.reused, g.conn.heard = true, false
			return g.conn, nil
		}
		p.release(g.conn, errCut)
	}
}

// claim waits for a connection or a permit to dial one.
func (p *Peer) claim(ctx context.Context, fresh bool) (grant, error) {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return grant{}, rdma.ErrClosed
	}
	if fresh {
		p.dropIdleLocked()
	}
	if n := len(p.mu.idle); n > 0 {
		c := p.mu.idle[n-1]
		p.mu.idle = p.mu.idle[:n-1]
		p.takeLocked(c)
		p.mu.Unlock()
		return grant{c}, nil
	}
	if p.mu.open < p.t.opts.Connections {
		p.mu.open++
		p.mu.Unlock()
		return grant{}, nil
	}
	wait := make(chan grant, 1)
	p.mu.waiting = append(p.mu.waiting, wait)
	p.mu.Unlock()

	select {
	case g := <-wait:
		return g, nil
	case <-p.ctx.Done():
	case <-ctx.Done():
	}
	p.mu.Lock()
	for i, w := range p.mu.waiting {
		if w == wait {
			p.mu.waiting = append(p.mu.waiting[:i], p.mu.waiting[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	select {
	case g := <-wait: // granted meanwhile: pass it to the next
		p.giveBack(g)
	default:
	}
	if err := ctx.Err(); err != nil {
		return grant{}, err
	}
	return grant{}, rdma.ErrClosed
}

// giveBack returns an unused grant.
func (p *Peer) giveBack(g grant) {
	if g.conn != nil {
		p.release(g.conn, nil)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeLocked()
}

// takeLocked makes c busy.
func (p *Peer) takeLocked(c *conn) {
	p.mu.busy[c] = struct{}{}
	c.rouse()
}

// freeLocked frees the slot of a connection.
func (p *Peer) freeLocked() {
	if len(p.mu.waiting) > 0 && !p.mu.closed {
		p.mu.waiting[0] <- grant{}
		p.mu.waiting = p.mu.waiting[1:]
		return
	}
	p.mu.open--
}

// release gives back a connection after use, with the error that it had.
func (p *Peer) release(c *conn, err error) {
	p.mu.Lock()
	if err == nil && !p.mu.closed && !c.wasCut() {
		if len(p.mu.waiting) > 0 {
			p.mu.waiting[0] <- grant{c}
			p.mu.waiting = p.mu.waiting[1:]
		} else {
			delete(p.mu.busy, c)
			p.mu.idle = append(p.mu.idle, c)
			c.rest()
		}
		p.mu.Unlock()
		return
	}
	delete(p.mu.busy, c)
	p.freeLocked()
	p.mu.Unlock()
	c.close()
}

// dropIdleLocked closes the idle connections.
func (p *Peer) dropIdleLocked() {
	for _, c := range p.mu.idle {
		c.close()
		p.freeLocked()
	}
	p.mu.idle = nil
}

// nudge is called when a connection has been idle for some time. It confirms the received blocks, and at the
// end of the idle time closes. It does nothing if c is in use again.
func (p *Peer) nudge(c *conn) {
	p.mu.Lock()
	at := -1
	for i, other := range p.mu.idle {
		if other == c {
			at = i
		}
	}
	if at < 0 {
		p.mu.Unlock()
		return
	}
	p.mu.idle = append(p.mu.idle[:at], p.mu.idle[at+1:]...)
	p.takeLocked(c)
	p.mu.Unlock()
	p.release(c, c.tend())
}

// Close implements rdma.Peer. Calls under way fail soon after it.
func (p *Peer) Close() error {
	p.t.mu.Lock()
	delete(p.t.mu.peers, p)
	p.t.mu.Unlock()

	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.closed = true
	p.dropIdleLocked()
	for c := range p.mu.busy {
		c.cut()
	}
	return nil
}
