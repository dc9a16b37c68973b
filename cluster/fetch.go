package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of one request of a fetch. A larger fetch takes several requests.
const (
	maxFetchItems = 64
	maxFetchBytes = 32 << 20
	// maxFetchRequests bounds the requests of one Fetch that run at a time. The transport
	// decides how many connections they share.
	maxFetchRequests = 8
)

// Fetch gets blocks from the peer. It calls Done once for each block, in any order, and blocks
// until it has called all. It waits at most as long as ctx allows, or Options.CallTimeout if
// ctx has no deadline.
func (p *Peer) Fetch(ctx context.Context, blocks []*Fetch) {
	if len(blocks) == 0 {
		return
	}
	s, err := p.fetchable()
	if ctx.Err() != nil {
		err = ctx.Err() // the peer did not cause this
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

// refuse settles blocks without asking the peer for them.
func refuse(blocks []*Fetch, err error) {
	for _, f := range blocks {
		f.Done(nil, err)
	}
}

// request fetches by the link, if there is one. It fetches by the transport what the link does
// not bring.
func (p *Peer) request(ctx context.Context, s *session, blocks []*Fetch) {
	only := p.n.o.Path == PathRDMA
	l := s.link.Load()
	if l != nil && p.control.Closed() {
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
		err := p.links.none()
		if l != nil {
			err = p.tooOften()
		}
		refuse(blocks, err)
		return
	}
	switch {
	case len(blocks) == 0:
		return
	case !p.bulk.Closed():
		refuse(blocks, p.tooOften())
		return
	}
	fetch := p.get
	if s.getter == nil {
		fetch = p.read
	}
	p.outcome(p.bulk, fetch(ctx, s, blocks))
}

// split divides blocks into requests.
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

// fetching is one block of a request that is being fetched.
type fetching struct {
	f    *Fetch
	info *BlockInfo // set when the peer has sent it
	bad  error      // why the peer's answer makes no sense
}

// accept takes the peer's description of the block and returns the destination of the bytes.
func (g *fetching) accept(info BlockInfo, err error) (rdma.Dest, error) {
	if err != nil {
		g.bad = err
		return rdma.Dest{}, err
	}
	g.info = &info
	return g.f.Dest(&info)
}

// done settles the block.
func (p *Peer) done(g *fetching, err error) {
	if err == nil {
		p.fetchedKeys.Add(1)
		p.fetchedSize.Add(uint64(g.info.Size))
	}
	g.f.Done(g.info, err)
}

// errNotAsked says that no block of a request could be asked for, so the result says nothing
// about the peer.
var errNotAsked = fmt.Errorf("no block can have these names: %w", context.Canceled)

// checkName fails with rdma.ErrGone if a block cannot have this name.
func checkName(f *Fetch) error {
	if _, err := block.ParseKey(f.Path); err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrGone, err)
	}
	return nil
}

// get fetches blocks by name. It returns the error that the breaker needs to know.
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
		name, err := message.BlockName(&f.BlockRef)
		if err != nil {
			f.Done(nil, err)
			continue
		}
		items = append(items, &rdma.Item{
			Name: name,
			Accept: func(h []byte, size int64) (rdma.Dest, error) {
				return g.accept(message.ParseHeader(h, size, &f.BlockRef))
			},
			Done: func(err error) { p.done(g, s.unlive(err)) },
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

// unlive replaces the error of a connection that this side has closed: for the caller the peer
// is unavailable.
func (s *session) unlive(err error) error {
	if errors.Is(err, rdma.ErrClosed) {
		return fmt.Errorf("%w: %w", rdma.ErrUnavailable, err)
	}
	return err
}
