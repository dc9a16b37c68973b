package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// call makes one call to the peer under a deadline and tells the breaker of the result. If the
// session ends, its connection is closed and call fails with rdma.ErrUnavailable.
func (p *Peer) call(ctx context.Context, needs meta.Feature, fn func(ctx context.Context, s *session) error) error {
	s, err := p.usable(p.control)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // the peer did not cause this
	}
	if s.features&needs != needs {
		return fmt.Errorf("%w: %s lacks the feature %v", rdma.ErrUnavailable, p.name, meta.FeatureNames(needs&^s.features))
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.n.o.CallTimeout)
		defer cancel()
	}
	err = fn(ctx, s)
	p.outcome(p.control, err)
	return err
}

// Store asks the peer to take copies of blocks that this node holds. It returns one outcome
// for each block. It blocks until the peer has fetched them. Without a deadline in ctx it
// waits at most Options.CallTimeout for each 64 blocks.
func (p *Peer) Store(ctx context.Context, blocks []BlockInfo) []StoreOutcome {
	outcomes := make([]StoreOutcome, 0, len(blocks))
	for len(blocks) > 0 {
		n := offersOf(blocks)
		outcomes = append(outcomes, p.store(ctx, blocks[:n])...)
		blocks = blocks[n:]
	}
	return outcomes
}

// offersOf returns how many of the first blocks fit into one call: at least one.
func offersOf(blocks []BlockInfo) int {
	bytes, fields := 0, 0
	for i := range min(len(blocks), control.MaxOffers) {
		dirs := len(blocks[i].Dirs)
		bytes += len(blocks[i].Path) + 128 + 20*dirs
		fields += 12 + 4*dirs
		if i > 0 && (bytes > control.MaxMessage || fields > control.MaxStoreFields) {
			return i
		}
	}
	return min(len(blocks), control.MaxOffers)
}

func (p *Peer) store(ctx context.Context, blocks []BlockInfo) []StoreOutcome {
	if s := p.live(); s != nil && s.features&meta.FeatureStore == 0 {
		err := fmt.Errorf("%s takes no copies: %w", p.name, block.ErrReadOnly)
		return slices.Repeat([]StoreOutcome{{Status: StoreRefused, Err: err}}, len(blocks))
	}
	var outcomes []StoreOutcome
	req := &wire.StoreRequest{}
	for i := range blocks {
		req.Offers = append(req.Offers, message.ToWire(&blocks[i], true))
	}
	err := p.call(ctx, meta.FeatureStore, func(ctx context.Context, s *session) error {
		reply, err := s.control.Store(ctx, req)
		if err != nil {
			return control.Error(ctx, err)
		}
		outcomes, err = message.OutcomesFromWire(reply, len(blocks))
		return err
	})
	if err != nil {
		return slices.Repeat([]StoreOutcome{{Err: fmt.Errorf("%w: %w", block.ErrUnavailable, err)}}, len(blocks))
	}
	return outcomes
}

// List calls fn for each name that the peer holds in a directory, until fn returns false.
func (p *Peer) List(ctx context.Context, dir string, fn func(Name) bool) error {
	return p.call(ctx, meta.FeatureList, func(ctx context.Context, s *session) error {
		ctx, cancel := context.WithTimeout(ctx, control.MaxCallTime) // the peer refuses longer deadlines
		defer cancel()
		stream, err := s.control.List(ctx, &wire.ListRequest{Dir: []byte(dir)})
		if err != nil {
			return control.Error(ctx, err)
		}
		for {
			reply, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return control.Error(ctx, err)
			}
			if more, err := message.EachName(dir, reply, fn); err != nil || !more {
				return err
			}
		}
	})
}

// Stat asks what the peer holds of each path. An entry of the result is nil if the peer holds
// nothing of that path.
func (p *Peer) Stat(ctx context.Context, paths []string) ([]*BlockInfo, error) {
	list := make([]*BlockInfo, 0, len(paths))
	for len(paths) > 0 {
		req, size := &wire.StatRequest{}, 0
		for _, path := range paths {
			if size += len(path); len(req.Paths) == control.MaxStat || size > control.MaxStatBytes && len(req.Paths) > 0 {
				break
			}
			req.Paths = append(req.Paths, []byte(path))
		}
		var part []*BlockInfo
		err := p.call(ctx, 0, func(ctx context.Context, s *session) error {
			reply, err := s.control.Stat(ctx, req)
			if err != nil {
				return control.Error(ctx, err)
			}
			part, err = message.StatFromWire(reply, paths[:len(req.Paths)])
			return err
		})
		if err != nil {
			return nil, err
		}
		list = append(list, part...)
		paths = paths[len(req.Paths):]
	}
	return list, nil
}
