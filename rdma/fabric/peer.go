//go:build ofi && cgo

package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

const (
	// maxTries is how often a read begins if it ends without a fault of its own: its endpoint
	// failed or was closed for another read.
	maxTries = 3
	// doubtTime: if nothing could begin by a rail for so long, the rail is skipped, even if the
	// read was given up before the provider did.
	doubtTime = 500 * time.Millisecond
	// socketEndpoints is how many endpoints there are over sockets for concurrent reads. Each is a
	// connection, so their readers need not pass the lead to each other.
	socketEndpoints = 8
)

// Peer implements rdma.Peer.
type Peer struct {
	t     *Transport
	name  string
	addr  address
	rails []*peerRail // by rail of this node
	turn  atomic.Uint32
	moved atomic.Int64
}

// peerRail is the path from one rail to the peer: to its rail of the same number, modulo the number
// of its rails. It has an endpoint, over sockets several. They are made when they are needed, and
// again after a failure.
type peerRail struct {
	p      *Peer
	rail   *rail
	theirs int
	alone  chan struct{} // has an element while one read has an endpoint to itself
	opens  chan struct{} // has an element while a goroutine makes a common endpoint

	mu struct {
		sync.Mutex
		closed bool
		shared []*endpoint
		all    map[*endpoint]struct{} // open ones, and some that are closed already
		bad    bool                   // it did not reach the peer at the last try
	}
}

func newPeer(t *Transport, a address) *Peer {
	p := &Peer{t: t, addr: a, name: fmt.Sprintf("%x", a.instance)}
	p.turn.Store(rand.Uint32()) // reads with little time do not begin with the same bad rail each time
	for i, r := range t.rails {
		p.rails = append(p.rails, newPeerRail(p, r, i%len(a.rails)))
	}
	return p
}

func newPeerRail(p *Peer, r *rail, theirs int) *peerRail {
	pr := &peerRail{p: p, rail: r, theirs: theirs, alone: make(chan struct{}, 1), opens: make(chan struct{}, 1)}
	pr.mu.all = map[*endpoint]struct{}{}
	return pr
}

// Close implements rdma.Peer. The transport knows the peer until everything is closed, so that its
// own Close can wait.
func (p *Peer) Close() error {
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
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	delete(p.t.mu.peers, p)
	return nil
}

// Moved returns how many bytes have been read from the peer's memory, also by reads that have not
// ended: it grows with each message.
func (p *Peer) Moved() int64 { return p.moved.Load() }

// Probe reads a word of the peer over each rail, over all at a time. It returns the errors of the
// failing rails. Read skips these rails while there are others, until a Probe finds that they reach
// the peer again.
func (p *Peer) Probe(ctx context.Context) error {
	if err := p.t.enter(); err != nil {
		return fmt.Errorf("fabric: peer %s: %w", p.name, err)
	}
	defer p.t.calls.Done()
	errs := make([]error, len(p.rails))
	var wg sync.WaitGroup
	for i, pr := range p.rails {
		wg.Go(func() { // ends with its word; the function waits for it
			if err := pr.probe(ctx); err != nil {
				errs[i] = fmt.Errorf("fabric: peer %s: rail %d, %s, to theirs %d: %w", p.name, i, pr.rail.name, pr.theirs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// probe reads a word of the peer.
func (pr *peerRail) probe(ctx context.Context) error {
	m := pr.p.wordAt(pr, 0)
	if err := pr.do(ctx, []*message{m}, nil); err != nil {
		return err
	}
	if m.word != pr.p.addr.instance {
		pr.note(false)
		return fmt.Errorf("%w: another node has this address now", rdma.ErrUnavailable)
	}
	return nil
}

// Read implements rdma.Peer. If a rail fails, another rail, if there is one, continues from there.
func (p *Peer) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	rails := p.choose(n)
	tried := slices.Clone(rails)
	before := "" // errors of other rails
	for {
		got, err := p.read(ctx, r, off, n, dst, rails)
		if err == nil {
			return nil
		}
		off, n, dst.Off = off+got, n-got, dst.Off+got
		next := p.others(rails, tried)
		if len(next) == 0 || ctx.Err() != nil || !errors.Is(err, rdma.ErrUnavailable) || errors.Is(err, errUnclosed) {
			return fmt.Errorf("fabric: peer %s: %w%s", p.name, err, before)
		}
		before += fmt.Sprintf("; by %s before: %v", rails[0].rail.name, err)
		rails, tried = next, append(tried, next...)
	}
}

// others returns the rails to try after some failed. If the read was striped, these are the good
// ones of failed; else it is one rail that was not tried, a good one first.
func (p *Peer) others(failed, tried []*peerRail) []*peerRail {
	if len(failed) > 1 {
		good := slices.DeleteFunc(slices.Clone(failed), func(pr *peerRail) bool { return !pr.good() })
		if len(good) == len(failed) {
			return nil
		}
		return good
	}
	var other []*peerRail
	for _, pr := range p.rails {
		switch {
		case slices.Contains(tried, pr):
		case pr.good():
			return []*peerRail{pr}
		case other == nil:
			other = []*peerRail{pr}
		}
	}
	return other
}

// choose returns the rails for a read of n bytes: all good ones if it is striped, else the one
// with the fewest bytes under way. Rails with equally few bytes take turns.
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
	next := int((p.turn.Add(1) - 1) % uint32(len(good)))
	good = slices.Concat(good[next:], good[:next])
	return []*peerRail{slices.MinFunc(good, func(a, b *peerRail) int { return cmp.Compare(a.rail.reading.Load(), b.rail.reading.Load()) })}
}

// reads counts n bytes as under way on the rail until the caller calls over.
func (pr *peerRail) reads(n int64) (over func()) {
	pr.rail.reading.Add(n)
	return func() { pr.rail.reading.Add(-n) }
}

// read reads by some rails. If it fails, the first got bytes are in the file and hashed.
func (p *Peer) read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest, rails []*peerRail) (got int64, err error) {
	if off < 0 || n < 0 || off > r.Size || n > r.Size-off || dst.Off < 0 {
		return 0, fmt.Errorf("read of %d bytes at %d of a region of %d, to %d", n, off, r.Size, dst.Off)
	}
	if err := p.t.enter(); err != nil {
		return 0, err
	}
	defer p.t.calls.Done()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	for _, pr := range rails {
		defer pr.reads(n / int64(len(rails)))()
	}
	key, err := parseKey(r.Key, len(p.addr.rails))
	if err != nil {
		return 0, err
	}
	if n == 0 { // or another rail has read all already
		word := p.wordAt(rails[0], key.slot)
		if err := rails[0].do(ctx, []*message{word}, &key); err != nil {
			return 0, err
		}
		return 0, checkWord(word, key)
	}
	if ring := p.ring(rails); ring != nil {
		defer p.t.rings.give(ring)
		return p.readThrough(ctx, ring, key, off, n, dst, rails[0])
	}
	return 0, p.readTo(ctx, key, off, n, dst, rails)
}

// readTo reads to the mapping of the file.
func (p *Peer) readTo(ctx context.Context, key regionKey, off, n int64, dst rdma.Dest, rails []*peerRail) (err error) {
	d, err := newTarget(p.t, dst, n, rails)
	if err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, errUnclosed) { // it may be written to at any time, so it stays
			d.close()
		}
	}()
	// The bytes count only if the word of the region is read after all of them, and is right.
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

// ring returns a buffer for a read over sockets, where the processor copies the bytes in any case.
// A card writes to the file's own pages.
func (p *Peer) ring(rails []*peerRail) []byte {
	if len(rails) > 1 || p.t.opts.Provider != TCP || p.t.opts.direct {
		return nil
	}
	return p.t.rings.take()
}

// readThrough reads through a buffer.
func (p *Peer) readThrough(ctx context.Context, ring []byte, key regionKey, off, n int64, dst rdma.Dest, pr *peerRail) (got int64, err error) {
	s := key.spots[pr.theirs]
	to := newSink(ring, n, dst, s.base+uint64(off), s.key)
	word := p.wordAt(pr, key.slot)
	word.ordered = pr.rail.info.ordered
	if err := pr.do(ctx, append(to.pieces[:len(to.pieces):len(to.pieces)], word), &key); err != nil {
		return to.at - dst.Off, err
	}
	return n, checkWord(word, key)
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
		wg.Go(func() { // ends with its part; the function waits for it
			if errs[i] = pr.do(ctx, work[i], &key); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var first error // that is not from our own cancel
	for _, err := range errs {
		if errors.Is(err, errUnclosed) {
			return err
		}
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

// good reports whether the rail reached the peer at the last try.
func (pr *peerRail) good() bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return !pr.mu.bad
}

// note remembers whether the rail reaches the peer.
func (pr *peerRail) note(reached bool) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.mu.bad = !reached
}

// do reads messages of the region of key; nil: of no region.
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
		case errors.Is(err, errUnclosed):
			return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
		case errors.Is(err, rdma.ErrClosed), errors.Is(err, errOwn):
			return err
		case ctx.Err() != nil: // maybe later than err, which does not count then
			if e.doubtful() {
				pr.note(false)
			}
			return ctx.Err()
		case key != nil && !errors.Is(err, errStalled) && (try == maxTries || errors.As(err, &failed)):
			return pr.examine(ctx, messages, key, err)
		case errors.As(err, &failed), errors.Is(err, errStalled), try == maxTries:
			pr.note(false)
			return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
		}
	}
}

// examine finds out why messages failed, on an endpoint without other users: a wrong key may end
// other reads on the same one. If the peer still has the region, the messages are read once more.
func (pr *peerRail) examine(ctx context.Context, messages []*message, key *regionKey, cause error) error {
	select {
	case pr.alone <- struct{}{}:
		defer func() { <-pr.alone }()
	case <-ctx.Done():
		return ctx.Err()
	}
	word := pr.p.wordAt(pr, key.slot)
	if err := pr.doAlone(ctx, []*message{word}); err != nil {
		switch {
		case errors.Is(err, rdma.ErrClosed):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		pr.note(false)
		return fmt.Errorf("%w: %w; then: %w", rdma.ErrUnavailable, cause, err)
	}
	pr.note(true)
	if word.word != key.token {
		return fmt.Errorf("%w: the region was closed: %w", rdma.ErrGone, cause)
	}
	err := pr.doAlone(ctx, messages)
	switch {
	case err == nil, errors.Is(err, rdma.ErrClosed), errors.Is(err, errOwn):
		return err
	case errors.Is(err, errUnclosed):
		return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errStalled):
		return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: the peer has the region, but it cannot be read: %w", rdma.ErrProtocol, err)
}

// doAlone reads messages on an endpoint of their own.
func (pr *peerRail) doAlone(ctx context.Context, messages []*message) error {
	e, err := pr.open(false)
	if err != nil {
		return err
	}
	err = e.do(ctx, messages)
	e.fail(errCut)
	return err
}

// endpoint enters the common endpoint with the fewest users. If all are in use, it makes one, up to
// the limit. Making one does not wait for the network.
func (pr *peerRail) endpoint() (*endpoint, error) {
	e, err := pr.pick()
	if e != nil || err != nil {
		return e, err
	}
	pr.opens <- struct{}{}
	defer func() { <-pr.opens }()
	if e, err = pr.pick(); e != nil || err != nil { // another goroutine has made it
		return e, err
	}
	return pr.open(true)
}

// pick is endpoint without making one: it returns nil then. It closes endpoints without users that
// may have died with another one.
func (pr *peerRail) pick() (*endpoint, error) {
	e, stale, err := pr.pickLive()
	for _, old := range stale { // no read can enter them any more
		old.fail(errCut)
	}
	return e, err
}

func (pr *peerRail) pickLive() (e *endpoint, stale []*endpoint, err error) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.mu.closed {
		return nil, nil, rdma.ErrClosed
	}
	pr.forgetLocked()
	died := false
	pr.mu.shared = slices.DeleteFunc(pr.mu.shared, func(e *endpoint) bool {
		_, err := e.load()
		died = died || errors.Is(err, errStalled) || errors.Is(err, errBroken)
		return err != nil
	})
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
		return nil, stale, nil
	}
	e.enter()
	return e, stale, nil
}

// dropIdleLocked removes the common endpoints without users.
func (pr *peerRail) dropIdleLocked() []*endpoint {
	var idle []*endpoint
	pr.mu.shared = slices.DeleteFunc(pr.mu.shared, func(e *endpoint) bool {
		users, _ := e.load()
		if users == 0 {
			idle = append(idle, e)
		}
		return users == 0
	})
	return idle
}

// forgetLocked forgets the closed endpoints, but not those about to close: Close waits for them.
func (pr *peerRail) forgetLocked() {
	for e := range pr.mu.all {
		select {
		case <-e.over:
			delete(pr.mu.all, e)
		default:
		}
	}
}

// open makes an endpoint and enters it.
func (pr *peerRail) open(shared bool) (*endpoint, error) {
	t := pr.p.t
	// Sockets get their own domain: if an endpoint is closed while bytes flow, the provider frees
	// something twice in the pool of the domain.
	own := t.opts.Provider == TCP
	q, err := openQueue(pr.rail.domain, pr.rail.info, pr.p.addr.rails[pr.theirs].endpoint, t.opts.pollOnly, own)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", rdma.ErrUnavailable, pr.rail.name, whyNoMemory("open an endpoint", err))
	}
	e := newEndpoint(q, pr.p, pr.rail.index)
	e.enter()
	pr.mu.Lock()
	closed := pr.mu.closed
	if !closed {
		pr.forgetLocked()
		pr.mu.all[e] = struct{}{}
	}
	if !closed && shared {
		pr.mu.shared = append(pr.mu.shared, e)
	}
	pr.mu.Unlock()
	if closed {
		e.fail(rdma.ErrClosed)
		return nil, rdma.ErrClosed
	}
	return e, nil
}
