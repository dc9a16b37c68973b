//go:build ofi && cgo

package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

const (
	// maxTries is how often a read is begun that ends by no fault of its own: with the
	// endpoint, which failed or was closed for another read.
	maxTries = 3
	// badTime is for how long a rail is not used that did not reach the peer, if there
	// are others.
	badTime = 10 * time.Second
	// socketEndpoints is how many endpoints there are over sockets for reads at a time. Each
	// is a connection: their readers need not hand over the lead to each other.
	socketEndpoints = 8
)

// Peer implements rdma.Peer.
type Peer struct {
	t     *Transport
	name  string
	addr  address
	rails []*peerRail // by rail of ours
	turn  atomic.Uint32
}

// peerRail is the way from one rail to the peer: to its rail of the same number, modulo how
// many it has. It has an endpoint, over sockets several, made when they are needed and again
// after they failed.
type peerRail struct {
	p      *Peer
	rail   *rail
	theirs int
	alone  chan struct{} // has an element while somebody has an endpoint to itself

	mu struct {
		sync.Mutex
		closed bool
		shared []*endpoint
		all    map[*endpoint]struct{}
		bad    time.Time // when it last did not reach the peer
	}
}

func newPeer(t *Transport, a address) *Peer {
	p := &Peer{t: t, addr: a, name: fmt.Sprintf("%x", a.instance)}
	for i, r := range t.rails {
		pr := &peerRail{p: p, rail: r, theirs: i % len(a.rails), alone: make(chan struct{}, 1)}
		pr.mu.all = map[*endpoint]struct{}{}
		p.rails = append(p.rails, pr)
	}
	return p
}

// Close implements rdma.Peer.
func (p *Peer) Close() error {
	p.t.mu.Lock()
	delete(p.t.mu.peers, p)
	p.t.mu.Unlock()
	for _, pr := range p.rails {
		pr.mu.Lock()
		pr.mu.closed = true
		var all []*endpoint
		for e := range pr.mu.all {
			all = append(all, e)
		}
		pr.mu.Unlock()
		for _, e := range all {
			e.fail(rdma.ErrClosed)
		}
	}
	return nil
}

// Probe reads a word of the peer's over each rail. It returns what each that fails says.
func (p *Peer) Probe(ctx context.Context) error {
	if err := p.t.enter(); err != nil {
		return fmt.Errorf("fabric: peer %s: %w", p.name, err)
	}
	defer p.t.calls.Done()
	var errs []error
	for i, pr := range p.rails {
		m := p.wordAt(pr, 0)
		err := pr.do(ctx, []*message{m}, nil)
		if err == nil && m.word != p.addr.instance {
			err = fmt.Errorf("%w: another node has this address now", rdma.ErrUnavailable)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("fabric: peer %s: rail %d, %s, to theirs %d: %w", p.name, i, pr.rail.name, pr.theirs, err))
		}
	}
	return errors.Join(errs...)
}

// Read implements rdma.Peer.
func (p *Peer) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	if err := p.read(ctx, r, off, n, dst, p.choose(n)); err != nil {
		return fmt.Errorf("fabric: peer %s: %w", p.name, err)
	}
	return nil
}

// choose returns the rails for a read of n bytes: all that are good if it is to be striped,
// else the next.
func (p *Peer) choose(n int64) []*peerRail {
	var good []*peerRail
	for _, pr := range p.rails {
		if pr.good() {
			good = append(good, pr)
		}
	}
	if len(good) == 0 {
		good = p.rails
	}
	stripe := p.t.opts.Stripe
	if stripe > 0 && n > stripe {
		return good
	}
	i := int(p.turn.Add(1)-1) % len(good)
	return good[i : i+1]
}

// read reads by some rails.
func (p *Peer) read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest, rails []*peerRail) error {
	if off < 0 || n < 0 || off > r.Size || n > r.Size-off || dst.Off < 0 {
		return fmt.Errorf("read of %d bytes at %d of a region of %d, to %d", n, off, r.Size, dst.Off)
	}
	if err := p.t.enter(); err != nil {
		return err
	}
	defer p.t.calls.Done()
	if err := ctx.Err(); err != nil {
		return err
	}
	key, err := parseKey(r.Key, len(p.addr.rails))
	if err != nil || n == 0 {
		return err
	}
	if ring := p.ring(rails); ring != nil {
		defer p.t.rings.give(ring)
		return p.readThrough(ctx, ring, key, off, n, dst, rails[0])
	}
	d, err := newTarget(p.t, dst, n, rails)
	if err != nil {
		return err
	}
	defer d.close()
	// The bytes are worth something only if the word of the region is read after them all,
	// and is right.
	word := p.wordAt(rails[0], key.slot)
	work := p.split(key, off, d, rails)
	last := []*message{word}
	if len(rails) == 1 {
		last = append(work[0], word)
	} else if err := move(ctx, key, work, rails); err != nil {
		return err
	}
	if err := rails[0].do(ctx, last, &key); err != nil {
		return err
	}
	if err := checkWord(word, key); err != nil {
		return err
	}
	return d.hash(dst.Hash)
}

// ring returns a buffer for a read, if it is to have one: over sockets, where the processor
// copies the bytes in any case. A card writes to the file's own pages.
func (p *Peer) ring(rails []*peerRail) []byte {
	if len(rails) > 1 || p.t.opts.Provider != TCP || p.t.opts.direct {
		return nil
	}
	return p.t.rings.take()
}

// readThrough reads by way of a buffer.
func (p *Peer) readThrough(ctx context.Context, ring []byte, key regionKey, off, n int64, dst rdma.Dest, pr *peerRail) error {
	s := key.spots[pr.theirs]
	to := newSink(ring, n, dst, s.base+uint64(off), s.key)
	word := p.wordAt(pr, key.slot)
	word.ordered = pr.rail.info.ordered
	if err := pr.do(ctx, append(to.pieces[:len(to.pieces):len(to.pieces)], word), &key); err != nil {
		return err
	}
	return checkWord(word, key)
}

// checkWord fails if the word of a region says that it is closed.
func checkWord(word *message, key regionKey) error {
	if word.word != key.token {
		return fmt.Errorf("%w: the region was closed", rdma.ErrGone)
	}
	return nil
}

// move reads the messages of several rails.
func move(ctx context.Context, key regionKey, work [][]*message, rails []*peerRail) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(rails))
	var wg sync.WaitGroup
	for i, pr := range rails {
		wg.Go(func() { // ends with its part, and is waited for
			if errs[i] = pr.do(ctx, work[i], &key); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var first error // that is not of our own cancel
	for _, err := range errs {
		if first == nil || errors.Is(first, context.Canceled) && err != nil {
			first = err
		}
	}
	return first
}

// split returns the messages of each rail.
func (p *Peer) split(key regionKey, off int64, d *target, rails []*peerRail) [][]*message {
	work := make([][]*message, len(rails))
	for at, turn := 0, 0; at < len(d.p); turn++ {
		i := turn % len(rails)
		pr := rails[i]
		n := int64(len(d.p) - at)
		if len(rails) > 1 {
			n = min(n, p.t.opts.Stripe)
		}
		n = min(n, pr.rail.info.maxMessage)
		s := key.spots[pr.theirs]
		work[i] = append(work[i], &message{
			p: d.p[at : at+int(n)], mem: d.mems[pr.rail.index], at: s.base + uint64(off) + uint64(at), key: s.key,
		})
		at += int(n)
	}
	return work
}

// wordAt is the message that reads a word of the peer's table.
func (p *Peer) wordAt(pr *peerRail, slot uint32) *message {
	s := p.addr.rails[pr.theirs].words
	return &message{at: s.base + 8*uint64(slot), key: s.key}
}

// good reports whether the rail is worth trying.
func (pr *peerRail) good() bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return pr.mu.bad.IsZero() || time.Since(pr.mu.bad) > badTime
}

// note remembers whether the rail reaches the peer.
func (pr *peerRail) note(reached bool) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.mu.bad = time.Time{}
	if !reached {
		pr.mu.bad = time.Now()
	}
}

// do reads messages. They are of the region that key is of; nil: of none.
func (pr *peerRail) do(ctx context.Context, messages []*message, key *regionKey) error {
	for try := 1; ; try++ {
		e, err := pr.endpoint()
		if err != nil {
			return err
		}
		err = e.do(ctx, messages)
		var failed *errFailed
		switch {
		case err == nil:
			pr.note(true)
			return nil
		case errors.Is(err, rdma.ErrClosed), ctx.Err() != nil:
			return err
		case key != nil && !errors.Is(err, errStalled) && (try == maxTries || errors.As(err, &failed)):
			return pr.examine(ctx, messages, key, err)
		case errors.As(err, &failed), errors.Is(err, errStalled), try == maxTries:
			pr.note(false)
			return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
		}
	}
}

// examine finds out why messages failed, on an endpoint that nobody else uses: a wrong key
// may end what others read by the same one. If the peer still has the region, the
// messages are read once more.
func (pr *peerRail) examine(ctx context.Context, messages []*message, key *regionKey, cause error) error {
	select {
	case pr.alone <- struct{}{}:
		defer func() { <-pr.alone }()
	case <-ctx.Done():
		return ctx.Err()
	}
	word := pr.p.wordAt(pr, key.slot)
	if err := pr.doAlone(ctx, []*message{word}); err != nil {
		if errors.Is(err, rdma.ErrClosed) || ctx.Err() != nil {
			return err
		}
		pr.note(false)
		return fmt.Errorf("%w: %w; then: %w", rdma.ErrUnavailable, cause, err)
	}
	pr.note(true)
	if word.word != key.token {
		return fmt.Errorf("%w: the region was closed: %w", rdma.ErrGone, cause)
	}
	err := pr.doAlone(ctx, messages)
	if err == nil || errors.Is(err, rdma.ErrClosed) || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, errStalled) {
		return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: the peer has the region, but it cannot be read: %w", rdma.ErrProtocol, err)
}

// doAlone reads messages on an endpoint of their own.
func (pr *peerRail) doAlone(ctx context.Context, messages []*message) error {
	pr.mu.Lock()
	e, err := pr.openLocked()
	pr.mu.Unlock()
	if err != nil {
		return err
	}
	e.enter()
	err = e.do(ctx, messages)
	e.fail(errCut)
	pr.mu.Lock()
	defer pr.mu.Unlock()
	delete(pr.mu.all, e)
	return err
}

// endpoint enters the one of the shared that the fewest use, and makes one if all are in
// use, as far as there may be more. To make one does not wait for the network.
func (pr *peerRail) endpoint() (*endpoint, error) {
	e, stale, err := pr.pick()
	for _, old := range stale {
		old.fail(errCut)
	}
	return e, err
}

// pick is endpoint, but for closing those that nobody uses, and that may have died with
// another. Nobody can enter them any more.
func (pr *peerRail) pick() (e *endpoint, stale []*endpoint, err error) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	died := false
	good := pr.mu.shared[:0]
	for _, e := range pr.mu.shared {
		if _, err := e.load(); err == nil {
			good = append(good, e)
		} else {
			delete(pr.mu.all, e)
			died = died || errors.Is(err, errStalled) || errors.Is(err, errBroken)
		}
	}
	clear(pr.mu.shared[len(good):])
	pr.mu.shared = good
	if died {
		stale = pr.dropIdleLocked()
	}
	fewest := 0
	for _, other := range pr.mu.shared {
		if users, _ := other.load(); e == nil || users < fewest {
			e, fewest = other, users
		}
	}
	most := 1
	if pr.p.t.opts.Provider == TCP {
		most = socketEndpoints
	}
	if e == nil || fewest > 0 && len(pr.mu.shared) < most {
		if e, err = pr.openLocked(); err != nil {
			return nil, stale, err
		}
		pr.mu.shared = append(pr.mu.shared, e)
	}
	e.enter()
	return e, stale, nil
}

// dropIdleLocked takes out the shared endpoints that nobody uses.
func (pr *peerRail) dropIdleLocked() []*endpoint {
	var idle []*endpoint
	pr.mu.shared = slices.DeleteFunc(pr.mu.shared, func(e *endpoint) bool {
		users, _ := e.load()
		if users == 0 {
			idle = append(idle, e)
			delete(pr.mu.all, e)
		}
		return users == 0
	})
	return idle
}

func (pr *peerRail) openLocked() (*endpoint, error) {
	if pr.mu.closed {
		return nil, rdma.ErrClosed
	}
	t := pr.p.t
	// Sockets get a domain of their own: if the endpoint is closed while bytes flow, the
	// provider frees something twice in the domain's pool.
	own := t.opts.Provider == TCP
	q, err := openQueue(pr.rail.domain, pr.rail.info, pr.p.addr.rails[pr.theirs].endpoint, t.opts.pollOnly, own)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", rdma.ErrUnavailable, pr.rail.name, whyNoMemory("open an endpoint", err))
	}
	e := newEndpoint(q, t, pr.rail.index)
	pr.mu.all[e] = struct{}{}
	return e, nil
}
