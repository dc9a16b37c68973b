package peer

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

const (
	// maxSame bounds how many equal versions are remembered.
	maxSame = 1 << 16
	// olderAgain is how long after other nodes have been asked about all blocks that only they know they may be asked again.
	olderAgain = time.Hour
)

// version names one version of a block.
type version struct{ hash, seq uint64 }

// older drops this node's version of a name if a peer has a later one, also if no node knows a
// grave any more. The node that replaced it may have forgotten that, in a crash or because it had
// too many graves. Two versions with the same bytes stay: two nodes that computed one block at the
// same time do not remove each other's copy.
type older struct {
	t    *Tier
	wake chan struct{} // capacity 1: a peer has announced again all that it holds

	// Used by run alone.
	same  map[version]uint64 // the later version that is equal to this one
	asked time.Time          // when other nodes were asked
}

func newOlder(t *Tier) *older {
	return &older{t: t, wake: make(chan struct{}, 1), same: map[version]uint64{}}
}

// run looks for older versions whenever a peer has announced again all that it holds.
func (o *older) run() {
	t := o.t
	for {
		select {
		case <-o.wake:
		case <-t.ctx.Done():
			return
		}
		if o.look() != nil {
			return // t.ctx has ended
		}
	}
}

// look looks at all blocks here. Other nodes are asked about those that this node does not know.
func (o *older) look() error {
	t := o.t
	var found, unknown []tiers.Holding
	var buf [8]holder
	asks := t.now().Sub(o.asked) >= olderAgain
	err := t.engine.Holdings(t.ctx, func(h *tiers.Holding) error {
		switch {
		case h.Mode&modeType != modeRegular:
		case len(o.laterThan(h, buf[:0])) > 0:
			found = append(found, *h)
		case asks && t.Unknown(h.Path):
			unknown = append(unknown, *h)
		}
		if len(unknown) == maxListed {
			found = o.ask(unknown, found)
			unknown = unknown[:0]
			timer, stop := t.after(restTimer, maxListed*time.Second/askRate)
			defer stop()
			select {
			case <-timer:
			case <-t.ctx.Done():
			}
		}
		if len(found) >= maxListed {
			o.drop(found)
			found = found[:0]
		}
		return nil
	})
	if err != nil {
		return err
	}
	o.drop(o.ask(unknown, found))
	return nil
}

// ask asks other nodes about blocks. It appends to found those of which there is a later version.
func (o *older) ask(unknown, found []tiers.Holding) []tiers.Holding {
	if len(unknown) == 0 {
		return found
	}
	o.asked = o.t.now()
	paths := make([]string, len(unknown))
	for i := range unknown {
		paths[i] = unknown[i].Path
	}
	o.t.ask(o.t.ctx, paths)
	var buf [8]holder
	for i := range unknown {
		if len(o.laterThan(&unknown[i], buf[:0])) > 0 {
			found = append(found, unknown[i])
		}
	}
	return found
}

// laterThan appends to buf, which is empty, the holders of a later version than h.
func (o *older) laterThan(h *tiers.Holding, buf []holder) []holder {
	buf = o.t.locate(h.Path, 0, buf)
	if len(buf) == 0 || buf[0].Seq <= h.Seq || buf[0].Dir() {
		return nil
	}
	return buf
}

// drop drops those of found of which a peer has a later version with other bytes.
func (o *older) drop(found []tiers.Holding) {
	t := o.t
	var buf [8]holder
	for i := range found {
		h := &found[i]
		holders := o.laterThan(h, buf[:0])
		if len(holders) == 0 || t.ctx.Err() != nil {
			continue
		}
		later := &holders[0]
		if later.Size == h.Size {
			key := version{later.Hash, h.Seq}
			if o.same[key] == later.Seq {
				continue
			}
			same, err := o.sameBytes(h, later)
			if err != nil {
				continue // one of them is gone, or cannot be asked: try the next time
			}
			if same {
				if len(o.same) >= maxSame {
					clear(o.same)
				}
				o.same[key] = later.Seq
				continue
			}
		}
		t.log.Info("dropped an older version than that of a peer", peerField(later.peer), pathField(h.Path),
			zap.Uint64("version", h.Seq), zap.Uint64("later", later.Seq))
		t.engine.Supersede(h.Path, false, later.Seq)
	}
}

// errOnlySum refuses the bytes of a block if only the checksum is wanted.
var errOnlySum = errors.New("only its checksum is wanted")

// sameBytes compares the checksums of this node's version and of a peer's.
func (o *older) sameBytes(h *tiers.Holding, later *holder) (bool, error) {
	t := o.t
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.Timeout)
	defer cancel()
	var theirs block.Checksum
	ref := cluster.BlockRef{Path: h.Path, Seq: later.Seq}
	var failed error
	later.peer.Fetch(ctx, []*cluster.Fetch{{
		BlockRef: ref, Size: 1, // none of its bytes come
		Dest: func(info *cluster.BlockInfo) (rdma.Dest, error) {
			theirs = info.Sum
			return rdma.Dest{}, errOnlySum
		},
		Done: func(_ *cluster.BlockInfo, err error) { failed = err },
	}})
	if !theirs.Valid {
		return false, failed
	}
	own, err := t.engine.lend(ctx, h.Path, h.Seq)
	if err != nil {
		return false, err
	}
	defer own.close()
	return own.Sum == theirs, nil
}

// Followed implements cluster.Backend.
func (b *backend) Followed() {
	select {
	case b.t.older.wake <- struct{}{}:
	default:
	}
}
