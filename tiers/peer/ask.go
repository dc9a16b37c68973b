package peer

import (
	"context"
	"slices"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// A node whose location index is full knows only a part of all names. It asks other nodes about the others. Their answers
// are hints.

var _ driver.Asker = (*Tier)(nil)

// Unknown implements driver.Asker. A path of which a holder is known needs no question, whoever told of it.
func (t *Tier) Unknown(path string) bool {
	if t.node.knows(location.HashPath(path)) || t.isClosed() {
		return false
	}
	var buf [8]holder
	return len(t.locate(path, 0, buf[:0])) == 0
}

// Ask implements driver.Asker.
func (t *Tier) Ask(ctx context.Context, paths []string) {
	if t.isClosed() || len(paths) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	t.ask(ctx, paths)
}

// ask asks other nodes about paths. The holders that they answer of a path replace what was answered before. It returns
// which paths were answered, also with no holder. It blocks on the network, as long as cluster.Node.Ask.
func (t *Tier) ask(ctx context.Context, paths []string) (answered map[string]bool) {
	t.counters.asked.Add(uint64(len(paths)))
	answered = make(map[string]bool, len(paths))
	t.node.ask(ctx, paths, func(path string, holders []holder) {
		answered[path] = true
		now := t.now()
		holders = slices.DeleteFunc(holders, func(h holder) bool { return !credible(&h.Entry) })
		if len(holders) > 0 {
			t.counters.askedFound.Add(1)
			t.hints.answer(path, holders, now)
		}
	})
	return answered
}

// credible reports whether what another node says about a path can be right.
func credible(e *location.Entry) bool {
	kind := e.Mode & modeType
	return e.Seq != 0 && e.Seq <= block.MaxSeq && (kind == modeDir || kind == modeRegular) &&
		e.Size >= 0 && e.Size <= location.MaxSize
}

// mayAsk reports whether other nodes should be asked about a piece without holders: once.
func (t *Tier) mayAsk(p *piece) bool {
	return !p.asked && !t.node.knows(location.HashPath(p.path))
}

// askAbout asks other nodes about pieces, and locates these again. Holders that were tried do not come again. It returns
// the pieces.
func (t *Tier) askAbout(ctx context.Context, pieces []*piece) []*piece {
	begun := t.now()
	paths := make([]string, len(pieces))
	for i, p := range pieces {
		paths[i], p.asked = p.path, true
	}
	t.ask(ctx, paths)
	took := t.now().Sub(begun)
	for _, p := range pieces {
		p.left -= took
		p.holders = slices.DeleteFunc(t.locate(p.path, p.tr.Attrs.Seq, nil), func(h holder) bool {
			return slices.Contains(p.tried, h.peer)
		})
		p.holders = p.holders[:min(len(p.holders), maxHolders)]
		t.viaKeeper(p)
	}
	return pieces
}
