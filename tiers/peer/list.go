package peer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

const (
	maxNames    = 100000 // that are read from one peer
	maxListings = 8      // peers that are asked at a time
	namesBatch  = 128    // that are passed on together
)

// List implements driver.Remote.
func (t *Tier) List(ctx context.Context, dir string, fn func(name string, l *driver.Located) bool) error {
	if t.isClosed() {
		return t.fail("list", block.Key{}, block.ErrClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	peers := make(chan member)
	names := make(chan told)
	var asked, failed atomic.Int64
	var lastErr atomic.Pointer[error]
	var wg sync.WaitGroup
	for range maxListings {
		wg.Go(func() { // ends when peers is closed, because of ctx; the function waits for it below
			for p := range peers {
				asked.Add(1)
				if err := t.listOne(ctx, p, dir, names); err != nil {
					failed.Add(1)
					lastErr.Store(&err)
				}
			}
		})
	}
	go func() { // ends with the workers; the function waits for it below, through names
		t.feedPeers(ctx, peers)
		wg.Wait()
		close(names)
	}()
	stopped := false
	for batch := range names {
		for i := range batch.names {
			if stopped || !t.tellName(dir, &batch, &batch.names[i], fn) {
				stopped = true
				cancel()
				break
			}
		}
	}
	if n := failed.Load(); !stopped && n > 0 && n == asked.Load() {
		return t.fail("list", block.Key{}, fmt.Errorf("none of %d peers answered, the last with %w: %w", n, *lastErr.Load(), block.ErrUnavailable))
	}
	return nil
}

// feedPeers passes on the peers that can be asked.
func (t *Tier) feedPeers(ctx context.Context, peers chan<- member) {
	defer close(peers)
	for _, p := range t.node.peers() {
		if !p.Can(meta.FeatureList) {
			continue
		}
		select {
		case peers <- p:
		case <-ctx.Done():
			return
		}
	}
}

// told are names that a peer told.
type told struct {
	peer  member
	kind  hintKind // that these names make
	names []cluster.Name
}

// listOne asks one peer, and passes its names on.
func (t *Tier) listOne(ctx context.Context, p member, dir string, names chan<- told) error {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	batch := told{peer: p, kind: farther}
	if t.near(p) {
		batch.kind = listed
	}
	flush := func() bool {
		select {
		case names <- batch:
			batch.names = nil
			return true
		case <-ctx.Done():
			return false
		}
	}
	count := 0
	err := p.List(ctx, dir, func(n cluster.Name) bool {
		if count == maxNames {
			t.log.Warn("peer has more names in a directory than are shown", peerField(p), pathField(dir))
			return false
		}
		count++
		batch.names = append(batch.names, n)
		return len(batch.names) < namesBatch || flush()
	})
	if len(batch.names) > 0 {
		flush()
	}
	return err
}

// tellName reports one name of a peer, unless the name is invalid or void. If this node does not know the name, the peer
// becomes a holder for a while: else each look-up of a listed name would ask other nodes.
func (t *Tier) tellName(dir string, from *told, n *cluster.Name, fn func(name string, l *driver.Located) bool) bool {
	if block.CheckName(n.Name) != nil || dir == "" && n.Name == block.Reserved {
		return true
	}
	path := n.Name
	if dir != "" {
		path = dir + "/" + n.Name
	}
	now, hash := t.now(), location.HashPath(path)
	if n.Seq == 0 || n.Seq > block.MaxSeq || n.Seq < t.node.buried(hash) {
		return true
	}
	e := location.Entry{Hash: hash, Seq: n.Seq, Size: n.Size, Mode: n.Mode, UID: n.UID, GID: n.GID}
	if !t.node.knows(hash) && credible(&e) {
		t.hints.list(path, hint{holder{from.peer, e}, from.kind, now.Add(answerTime)}, now)
	}
	return fn(n.Name, &driver.Located{Seq: n.Seq, Size: n.Size, Mode: n.Mode, UID: n.UID, GID: n.GID, Mtime: n.Mtime})
}
