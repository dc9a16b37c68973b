package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of one request of a fetch; what exceeds them goes in several.
const (
	maxFetchItems = 64
	maxFetchBytes = 32 << 20
	// maxFetchRequests bounds the requests of one Fetch that are under way. How many
	// connections they share is the transport's business.
	maxFetchRequests = 8
)

// Fetch gets blocks from it and calls Done of each once, in order or not, before it
// returns. It blocks until then, at most as long as ctx, or, if that has no deadline,
// Options.CallTimeout.
func (p *Peer) Fetch(ctx context.Context, blocks []*Fetch) {
	if len(blocks) == 0 {
		return
	}
	s, err := p.fetchable()
	if ctx.Err() != nil {
		err = ctx.Err() // of which the peer is innocent
	}
	if err != nil {
		refuse(blocks, err)
		return
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.n.o.CallTimeout)
		defer cancel()
	}
	p.inflight.Add(int64(len(blocks)))
	defer p.inflight.Add(-int64(len(blocks)))
	requests := split(blocks)
	if len(requests) == 1 {
		p.request(ctx, s, requests[0])
		return
	}
	slots := make(chan struct{}, maxFetchRequests)
	var wg sync.WaitGroup
	for _, r := range requests {
		slots <- struct{}{}
		wg.Go(func() { // waited for below
			p.request(ctx, s, r)
			<-slots
		})
	}
	wg.Wait()
}

// refuse ends blocks that the peer is not asked for.
func refuse(blocks []*Fetch, err error) {
	for _, f := range blocks {
		f.Done(nil, err)
	}
}

// request fetches by the link, if there is one, and what that does not bring by the
// transport.
func (p *Peer) request(ctx context.Context, s *session, blocks []*Fetch) {
	only := p.n.o.Path == PathRDMA
	l := s.link.Load()
	if l != nil && p.control.closed.Load() {
		rest := p.readLink(ctx, s, l, blocks)
		if len(rest) == 0 {
			return
		}
		blocks = blocks[:0:0]
		for i := range rest {
			if only {
				rest[i].settle()
			} else {
				blocks = append(blocks, rest[i].f)
			}
		}
		p.n.counters.fabricFallbacks.Add(uint64(len(blocks)))
	} else if only {
		err := p.noLink()
		if l != nil {
			err = p.tooOften()
		}
		refuse(blocks, err)
		return
	}
	switch {
	case len(blocks) == 0:
		return
	case !p.bulk.closed.Load():
		refuse(blocks, p.tooOften())
		return
	}
	fetch := p.get
	if s.getter == nil {
		fetch = p.read
	}
	p.outcome(p.bulk, fetch(ctx, s, blocks))
}

// split cuts blocks into requests.
func split(blocks []*Fetch) [][]*Fetch {
	var requests [][]*Fetch
	begin, size := 0, int64(0)
	for i, f := range blocks {
		if i > begin && (i-begin >= maxFetchItems || size+f.Size > maxFetchBytes) {
			requests = append(requests, blocks[begin:i])
			begin, size = i, 0
		}
		size += f.Size
	}
	return append(requests, blocks[begin:])
}

// fetching is one block of a request under way.
type fetching struct {
	f    *Fetch
	info *BlockInfo // once the peer has told it
	bad  error      // what the peer told makes no sense
}

// accept takes what the peer tells of the block and returns where the bytes go.
func (g *fetching) accept(info BlockInfo, err error) (rdma.Dest, error) {
	if err != nil {
		g.bad = err
		return rdma.Dest{}, err
	}
	g.info = &info
	return g.f.Dest(&info)
}

// done ends it.
func (p *Peer) done(g *fetching, err error) {
	if err == nil {
		p.fetchedKeys.Add(1)
		p.fetchedSize.Add(uint64(g.info.Size))
	}
	g.f.Done(g.info, err)
}

// errNotAsked says that a request had nothing to ask the peer for: it tells nothing of it.
var errNotAsked = fmt.Errorf("no block can have these names: %w", context.Canceled)

// checkName fails with rdma.ErrGone if no block can have the name.
func checkName(f *Fetch) error {
	if _, err := block.ParseKey(f.Path); err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrGone, err)
	}
	return nil
}

// get fetches by name. It returns what the breaker is to know.
func (p *Peer) get(ctx context.Context, s *session, blocks []*Fetch) error {
	items := make([]*rdma.Item, 0, len(blocks))
	all := make([]fetching, len(blocks))
	for i, f := range blocks {
		g := &all[i]
		g.f = f
		if err := checkName(f); err != nil {
			f.Done(nil, err)
			continue
		}
		name, err := blockName(&f.BlockRef)
		if err != nil {
			f.Done(nil, err)
			continue
		}
		items = append(items, &rdma.Item{
			Name:   name,
			Accept: func(h []byte, size int64) (rdma.Dest, error) { return g.accept(parseHeader(h, size, &f.BlockRef)) },
			Done:   func(err error) { p.done(g, s.unlive(err)) },
		})
	}
	if len(items) == 0 {
		return errNotAsked
	}
	err := s.unlive(s.getter.Get(ctx, items))
	for i := range all {
		err = errors.Join(err, all[i].bad)
	}
	return err
}

// unlive replaces the error of a connection that this side has closed: to the caller the
// peer is gone.
func (s *session) unlive(err error) error {
	if errors.Is(err, rdma.ErrClosed) {
		return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
	}
	return err
}
