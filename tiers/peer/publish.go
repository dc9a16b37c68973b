package peer

import (
	"errors"
	"strings"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

const (
	eventBatch = 256 // events that are handled together
	dirBatch   = 512 // names of a directory that are announced together

	// maxMoves bounds the directories whose rename is being followed.
	maxMoves = 64
)

// publisher turns the events of the engine into records of this node's feed. It keeps nothing of a
// block: an event only says which name has changed, and the record has the present state.
type publisher struct {
	t      *Tier
	next   uint64 // number of the next event
	log    events
	batch  map[string]struct{} // paths of the events read together
	order  []string            // the same, in order
	moves  []move
	record []feed.Record
}

// move is the rename of a directory. Everything below it has other names now. Events from before
// all of it was announced are about the old names, too.
type move struct {
	from, to string
	until    uint64 // number of the first event after that
}

// publish announces changes until t.ctx ends or the log is closed, from event next on.
func (t *Tier) publish(log events, next uint64) {
	p := &publisher{t: t, next: next, log: log, batch: make(map[string]struct{})}
	buf := make([]event.Event, eventBatch)
	for {
		n, missed, err := log.Read(t.ctx, p.next, buf)
		if err != nil {
			if t.ctx.Err() == nil && !errors.Is(err, block.ErrClosed) {
				t.log.Error("event log cannot be read: changes are not announced any more", zap.Error(err))
			}
			return
		}
		p.next += missed + uint64(n)
		if missed > 0 {
			p.resync("events were missed", zap.Uint64("events", missed))
			continue // the snapshot is later than all of these
		}
		p.announce(buf[:n])
	}
}

// resync makes all subscribers take a new snapshot.
func (p *publisher) resync(why string, fields ...zap.Field) {
	p.moves = nil
	p.t.counters.resyncs.Add(1)
	p.t.log.Info("announcing all blocks again: "+why, fields...)
	p.t.node.Resync()
}

// announce announces the present state of all names in the events.
func (p *publisher) announce(list []event.Event) {
	clear(p.batch)
	p.order = p.order[:0]
	first := p.next - uint64(len(list))
	for i := range list {
		ev := &list[i]
		p.expireMoves(first + uint64(i))
		if ev.Tier == p.t.opts.Name {
			continue // of a copy on another node: this node has what it had
		}
		p.touch(ev.Key.Path())
		if ev.From != (block.Key{}) {
			p.touch(ev.From.Path())
		}
		if ev.Kind == event.DirRenamed && !p.follow(ev.From.Path(), ev.Key.Path()) {
			p.resync("directories were renamed over one another")
			return // it covers the other events, too
		}
	}
	p.record = p.record[:0]
	for _, path := range p.order {
		p.record = append(p.record, p.state(path))
	}
	p.send()
}

// touch records that a path has changed, and its name before a rename that is being followed.
func (p *publisher) touch(path string) {
	p.note(path)
	for i := range p.moves {
		if rest, ok := below(path, p.moves[i].to); ok {
			p.note(p.moves[i].from + rest)
		}
	}
}

func (p *publisher) note(path string) {
	if _, ok := p.batch[path]; !ok {
		p.batch[path] = struct{}{}
		p.order = append(p.order, path)
	}
}

// below returns the rest of path after dir, with its slash. False: path is not below it.
func below(path, dir string) (string, bool) {
	if rest, ok := strings.CutPrefix(path, dir); ok && strings.HasPrefix(rest, "/") {
		return rest, true
	}
	return "", false
}

// state is the record of what this node has of a path now.
func (p *publisher) state(path string) feed.Record {
	if h, ok := p.t.engine.Holding(path); ok {
		return holdRecord(&h)
	}
	return feed.Record{Op: feed.Release, Hash: location.HashPath(path)}
}

func (p *publisher) send() {
	if len(p.record) == 0 {
		return
	}
	p.t.node.Append(p.record...)
	p.t.counters.published.Add(uint64(len(p.record)))
}

// follow announces everything below a renamed directory, under both names. It returns false if the
// rename overlaps with one that is still being followed: then the earlier names cannot be known.
//
// What leaves the directory during the walk is not found there. But the event of that comes before
// until, and touch does the rest.
func (p *publisher) follow(from, to string) bool {
	for i := range p.moves {
		m := &p.moves[i]
		for _, a := range []string{from, to} {
			for _, b := range []string{m.from, m.to} {
				_, inner := below(a, b)
				_, outer := below(b, a)
				if a == b || inner || outer {
					return false
				}
			}
		}
	}
	if len(p.moves) == maxMoves {
		return false
	}
	p.announceBelow(from, to, "")
	p.moves = append(p.moves, move{from: from, to: to, until: p.log.Next()})
	return true
}

// announceBelow announces the entries of a directory below to, which was called from.
func (p *publisher) announceBelow(from, to, rest string) {
	var dirs []string
	after := ""
	for {
		list, more := p.t.engine.HoldingsIn(to+rest, after, dirBatch)
		p.record = p.record[:0]
		for i := range list {
			h := &list[i]
			after = baseName(h.Path)
			p.record = append(p.record, holdRecord(h), p.state(from+rest+"/"+after))
			if h.Mode&modeType == modeDir {
				dirs = append(dirs, rest+"/"+after)
			}
		}
		p.send()
		if !more || len(list) == 0 || p.t.ctx.Err() != nil {
			break
		}
	}
	for _, dir := range dirs {
		p.announceBelow(from, to, dir)
	}
}

// expireMoves ends the moves that event number comes after.
func (p *publisher) expireMoves(number uint64) {
	kept := p.moves[:0]
	for _, m := range p.moves {
		if number < m.until {
			kept = append(kept, m)
		}
	}
	p.moves = kept
}
