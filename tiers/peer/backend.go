package peer

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

const (
	// maxTakes is how many offers of peers are handled at a time.
	maxTakes = 8
	// maxListed is how many names are sent at a time.
	maxListed = 4096
)

// backend serves the engine's blocks to peers.
type backend struct{ t *Tier }

var _ cluster.Backend = (*backend)(nil)

// holdRecord is the record of a holding.
func holdRecord(h *tiers.Holding) feed.Record {
	return feed.Record{
		Op: feed.Hold, Hash: location.HashPath(h.Path), Seq: h.Seq, Size: h.Size,
		Mode: h.Mode, UID: h.UID, GID: h.GID, Memory: h.Memory,
	}
}

// Snapshot implements cluster.Backend.
func (b *backend) Snapshot(ctx context.Context, fn func(r *feed.Record) error) error {
	return b.t.engine.Holdings(ctx, func(h *tiers.Holding) error {
		r := holdRecord(h)
		return fn(&r)
	})
}

// infoFrom describes a holding.
func infoFrom(h *tiers.Holding) cluster.BlockInfo {
	info := cluster.BlockInfo{
		Path: h.Path, Seq: h.Seq, Size: h.Size, Sum: h.Sum, Mode: h.Mode, UID: h.UID, GID: h.GID,
		Mtime: h.Mtime, Expires: h.Expires, Pinned: h.Pinned, User: h.User,
	}
	for _, d := range h.Dirs {
		info.Dirs = append(info.Dirs, cluster.DirInfo(d))
	}
	return info
}

// Lend implements cluster.Backend.
func (b *backend) Lend(ctx context.Context, ref *cluster.BlockRef) (cluster.BlockInfo, rdma.Loan, error) {
	l, err := b.t.engine.lend(ctx, ref.Path, ref.Seq)
	switch {
	case err == nil:
	case ref.Claim && errors.Is(err, block.ErrNotFound) && !b.t.claims.enter(lentBlock{ref.Path, ref.Seq}, b.t.now()):
		b.t.counters.later.Add(1)
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrLater
	case errors.Is(err, block.ErrNotFound), errors.Is(err, block.ErrCorrupt), errors.Is(err, block.ErrClosed),
		errors.Is(err, block.ErrIsDir), errors.Is(err, block.ErrNotDir), errors.Is(err, block.ErrInvalid),
		errors.Is(err, block.ErrNameTooLong), errors.Is(err, block.ErrReserved):
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrGone
	default: // no room, a device without an answer, the end of ctx
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrBusy
	}
	if b.t.opts.WorldReadable && !worldReadable(&l.Holding) {
		l.close()
		b.t.tellPrivate(ref.Path)
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrGone
	}
	leave := b.t.loans.enter(lentBlock{ref.Path, l.Seq}, l.Size, ref.Patient, b.t.now())
	if leave == nil {
		l.close()
		b.t.counters.later.Add(1)
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrLater
	}
	b.t.counters.lent.Add(1)
	b.t.counters.lentBytes.Add(uint64(l.Size))
	return infoFrom(&l.Holding), rdma.Loan{File: l.file, Size: l.Size, Close: func() { leave(); l.close() }}, nil
}

// worldReadable reports whether the modes let every user read a block.
func worldReadable(h *tiers.Holding) bool {
	const read, search = 0o004, 0o001
	return h.Mode&read != 0 && !slices.ContainsFunc(h.Dirs, func(d driver.DirAttrs) bool { return d.Mode&search == 0 })
}

// tellPrivate logs once that peers do not get some blocks.
func (t *Tier) tellPrivate(path string) {
	if t.private.CompareAndSwap(false, true) {
		t.log.Warn("a block that not every user may read is not given to peers: set keys and certificates, or insecure", pathField(path))
	}
}

// List implements cluster.Backend.
func (b *backend) List(ctx context.Context, dir, after string, limit int) ([]cluster.Name, bool, error) {
	if limit <= 0 || limit > maxListed {
		limit = maxListed
	}
	held, more := b.t.engine.HoldingsIn(dir, after, limit)
	names := make([]cluster.Name, 0, len(held))
	for i := range held {
		names = append(names, cluster.Name{Name: baseName(held[i].Path), BlockInfo: infoFrom(&held[i])})
	}
	return names, more, ctx.Err()
}

// baseName is the last component of a path.
func baseName(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// Stat implements cluster.Backend.
func (b *backend) Stat(paths []string) []*cluster.BlockInfo {
	out := make([]*cluster.BlockInfo, len(paths))
	for i, path := range paths {
		if h, ok := b.t.engine.Holding(path); ok {
			info := infoFrom(&h)
			out[i] = &info
		}
	}
	return out
}

// Bury implements cluster.Backend.
func (b *backend) Bury(path string, dir bool, seq uint64) {
	if block.CheckPath(path) != nil {
		return // not a valid name
	}
	b.t.superseded(path, seq)
	b.t.engine.Supersede(path, dir, seq)
}

// Observe implements cluster.Backend.
func (b *backend) Observe(seq uint64, from string) { b.t.engine.Observe(seq, from) }

// Store implements cluster.Backend.
func (b *backend) Store(ctx context.Context, from *cluster.Peer, offers []cluster.BlockInfo) []cluster.StoreOutcome {
	return b.t.take(ctx, from, offers)
}

// take makes the engine take copies of blocks that a peer offers.
func (t *Tier) take(ctx context.Context, from member, offers []cluster.BlockInfo) []cluster.StoreOutcome {
	out := make([]cluster.StoreOutcome, len(offers))
	var wg sync.WaitGroup
	for i := range offers {
		if !t.opts.Accept {
			out[i] = cluster.StoreOutcome{Status: cluster.StoreRefused, Err: block.ErrReadOnly}
			t.counters.refused.Add(1)
			continue
		}
		select {
		case t.takes <- struct{}{}:
		case <-ctx.Done():
			out[i].Err = block.ErrUnavailable
			continue
		}
		wg.Go(func() { // ends with ctx at the latest; awaited below
			defer func() { <-t.takes }()
			out[i] = t.takeOne(ctx, from, &offers[i])
		})
	}
	wg.Wait()
	return out
}

// takeOne takes one copy. The engine fetches it through this tier like any block of another node.
// The offer is kept meanwhile, so the engine finds the holder even if the holder's feed has not
// announced the block yet.
func (t *Tier) takeOne(ctx context.Context, from member, info *cluster.BlockInfo) cluster.StoreOutcome {
	err := block.CheckPath(info.Path)
	if err != nil || info.Size < 0 || info.Size > location.MaxSize || info.Seq == 0 || info.Mode&modeType != modeRegular ||
		info.Seq > block.MaxSeq {
		return cluster.StoreOutcome{Err: block.ErrInvalid}
	}
	hash := location.HashPath(info.Path)
	if t.node.buried(hash) > info.Seq {
		return cluster.StoreOutcome{Status: cluster.StoreRefused, Err: block.ErrExist}
	}
	offer := hint{kind: offered, holder: holder{from, location.Entry{
		Hash: hash, Seq: info.Seq, Size: info.Size, Mode: info.Mode, UID: info.UID, GID: info.GID, Memory: true,
	}}}
	t.hints.add(info.Path, offer, t.now())
	defer func() { t.hints.endOffer(info.Path, from.Name(), info.Seq, t.now()) }()
	h := tiers.Holding{
		Path: info.Path, Seq: info.Seq, Size: info.Size, Sum: info.Sum, Mode: info.Mode, UID: info.UID, GID: info.GID,
		Mtime: info.Mtime, Expires: info.Expires, Pinned: info.Pinned,
	}
	for _, d := range info.Dirs {
		h.Dirs = append(h.Dirs, driver.DirAttrs(d))
	}
	err = t.engine.Take(ctx, &h)
	if err == nil {
		t.counters.taken.Add(1)
		t.counters.takenBytes.Add(uint64(info.Size))
		return cluster.StoreOutcome{Status: cluster.StoreDone}
	}
	out := t.notTaken(info, err)
	if out.Status != cluster.StoreHad {
		t.counters.refused.Add(1)
		t.log.Debug("offer not taken", peerField(from), pathField(info.Path), zap.Error(err))
	}
	return out
}

// notTaken is the answer to an offer that the engine did not take.
func (t *Tier) notTaken(info *cluster.BlockInfo, err error) cluster.StoreOutcome {
	switch kind := kindOf(err); {
	case errors.Is(kind, block.ErrExist):
		if h, ok := t.engine.Holding(info.Path); ok && h.Seq == info.Seq {
			return cluster.StoreOutcome{Status: cluster.StoreHad}
		}
		return cluster.StoreOutcome{Status: cluster.StoreRefused, Err: kind}
	case errors.Is(kind, block.ErrNoSpace), errors.Is(kind, block.ErrQuota), errors.Is(kind, block.ErrBudget),
		errors.Is(kind, block.ErrTooLarge), errors.Is(kind, block.ErrReadOnly):
		return cluster.StoreOutcome{Status: cluster.StoreRefused, Err: kind}
	default:
		return cluster.StoreOutcome{Err: kind}
	}
}

func peerField(p member) zap.Field    { return zap.String("peer", p.Name()) }
func pathField(path string) zap.Field { return zap.String("path", path) }
