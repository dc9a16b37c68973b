package peer

import (
	"context"
	"slices"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
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

// ask asks other nodes about paths. What they answer about a path replaces what was answered before. It blocks on the
// network, as long as cluster.Node.Ask.
func (t *Tier) ask(ctx context.Context, paths []string) {
	t.counters.asked.Add(uint64(len(paths)))
	answers := make(map[string][]holder)
	t.node.ask(ctx, paths, func(path string, h holder) {
		if list := answers[path]; len(list) < maxAnswersOf && credible(&h.Entry, t.now()) {
			answers[path] = append(list, h)
		}
	})
	t.counters.askedFound.Add(uint64(len(answers)))
	now := t.now()
	for path, list := range answers {
		t.hints.answer(path, list, now)
	}
}

// credible reports whether what another node says about a path can be right.
func credible(e *location.Entry, now time.Time) bool {
	kind := e.Mode & modeType
	return e.Seq != 0 && e.Seq <= location.LatestVersion(now) && (kind == modeDir || kind == modeRegular) &&
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
