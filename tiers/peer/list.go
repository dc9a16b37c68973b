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
	var names = make(chan []cluster.Name)
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
		for i := range batch {
			if stopped || !t.tellName(dir, &batch[i], fn) {
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

// listOne asks one peer, and passes its names on.
func (t *Tier) listOne(ctx context.Context, p member, dir string, names chan<- []cluster.Name) error {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	var batch []cluster.Name
	flush := func() bool {
		select {
		case names <- batch:
			batch = nil
			return true
		case <-ctx.Done():
			return false
		}
	}
	told := 0
	err := p.List(ctx, dir, func(n cluster.Name) bool {
		if told == maxNames {
			t.log.Warn("peer has more names in a directory than are shown", peerField(p), pathField(dir))
			return false
		}
		told++
		batch = append(batch, n)
		return len(batch) < namesBatch || flush()
	})
	if len(batch) > 0 {
		flush()
	}
	return err
}

// tellName reports one name of a peer, unless the name is invalid or void.
func (t *Tier) tellName(dir string, n *cluster.Name, fn func(name string, l *driver.Located) bool) bool {
	if block.CheckName(n.Name) != nil || dir == "" && n.Name == block.Reserved {
		return true
	}
	path := n.Name
	if dir != "" {
		path = dir + "/" + n.Name
	}
	if n.Seq == 0 || n.Seq > location.LatestVersion(t.now()) || n.Seq < t.node.buried(location.HashPath(path)) {
		return true
	}
	return fn(n.Name, &driver.Located{Seq: n.Seq, Size: n.Size, Mode: n.Mode, UID: n.UID, GID: n.GID, Mtime: n.Mtime})
}
