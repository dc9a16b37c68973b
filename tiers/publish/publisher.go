package publish

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

const (
	// heldBytes bounds the messages about events during a snapshot. If there are more, the log may
	// overtake the publisher, and another snapshot follows.
	heldBytes = 64 << 20
	// renamePause is the least time between a snapshot and one because of a renamed directory.
	renamePause = 5 * time.Second
	// greetPause is the least time between two greetings, and between the start and the first one.
	// Sockets of subscribers of an earlier daemon come back in a tenth of a second, and get one
	// greeting together.
	greetPause = time.Second
)

// Publisher publishes events over ZeroMQ.
type Publisher struct {
	opts Options
	settings
	log     *zap.Logger
	pub     *pub
	replay  *replay // nil: none
	history *history

	cancel context.CancelFunc // ends run
	done   chan struct{}      // closed when run has ended

	// Of run.
	batch    *batch
	next     uint64 // number of the next event
	events   []event.Event
	path     []byte    // reused, as is one
	one      [1]string // a medium
	snapshot time.Time
	stale    bool // a directory was renamed: the new names below it were not published
	greeted  time.Time
	unheard  bool // there was no subscriber when all were told to forget everything
	held     []*message
	holding  bool
	heldSize int

	stats struct {
		unmatched, gaps, snapshots atomic.Uint64
	}
}

// Open binds the sockets and begins to connect and to publish. It fails with all errors in o, or if
// it cannot bind. An absent subscriber of Connect is no failure.
func Open(ctx context.Context, o Options) (*Publisher, error) {
	s, err := o.check()
	if err != nil {
		return nil, err
	}
	if o.Buffer == 0 {
		o.Buffer = defaultBuffer
	}
	p := &Publisher{
		opts: o, settings: s, log: o.Logger, history: newHistory(o.Buffer), done: make(chan struct{}),
		batch: newBatch(s.form, s.arrays, o.BlockSize), events: make([]event.Event, readSize),
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	var ln net.Listener
	if o.Bind != "" {
		if ln, err = listen(ctx, o.Bind); err != nil {
			return nil, err
		}
	}
	if o.Replay != "" {
		rl, err := listen(ctx, o.Replay)
		if err != nil {
			if ln != nil {
				err = errors.Join(err, ln.Close())
			}
			return nil, err
		}
		p.replay = newReplay(rl, p.history, o.ReplayBare, p.log)
	}
	p.pub = newPub(ln, o.Connect, o.Topic, p.log)
	p.next = o.Log.Next() // now: later events are published, whenever run begins
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	go p.run(runCtx) // ends at Close, or with the log
	return p, nil
}

// Stats are totals since Open.
type Stats struct {
	Endpoint       string `json:"endpoint" help:"address of the publisher; empty if it is not bound"`
	ReplayEndpoint string `json:"replay_endpoint,omitempty" help:"address for replays"`
	Subscribers    int    `json:"subscribers" help:"subscribers, and those to which kvfs connected"`
	Refused        uint64 `json:"refused" help:"connections beyond the limits"`
	Messages       uint64 `json:"messages" help:"messages"`
	Events         uint64 `json:"events" help:"hashes in these messages"`
	Unmatched      uint64 `json:"unmatched" help:"names that fit no template, or whose hash is not hexadecimal"`
	Dropped        uint64 `json:"dropped" help:"messages for which a subscriber was too slow"`
	Gaps           uint64 `json:"gaps" help:"times that the log overtook the publisher, and a snapshot was sent"`
	Snapshots      uint64 `json:"snapshots" help:"snapshots sent"`
	Replays        uint64 `json:"replays" help:"replays"`
}

// Stats returns the counts.
func (p *Publisher) Stats() Stats {
	s := Stats{
		Endpoint:    p.pub.endpoint(),
		Subscribers: p.pub.subscribers(),
		Refused:     p.pub.refused.Load(),
		Unmatched:   p.stats.unmatched.Load(),
		Dropped:     p.pub.dropped.Load(),
		Gaps:        p.stats.gaps.Load(),
		Snapshots:   p.stats.snapshots.Load(),
	}
	s.Messages, s.Events = p.history.totals()
	if p.replay != nil {
		s.ReplayEndpoint, s.Replays = p.replay.endpoint(), p.replay.served.Load()
		s.Refused += p.replay.refused.Load()
	}
	return s
}

// Refuse frees the addresses: no subscriber connects any more. Those that have go on until Close.
func (p *Publisher) Refuse() {
	p.pub.refuse()
	if p.replay != nil {
		p.replay.refuse()
	}
}

// Close publishes the remaining events of the log, within ctx, and closes the sockets. It fails
// with ctx's error if subscribers did not get all of it in time.
func (p *Publisher) Close(ctx context.Context) error {
	p.cancel()
	<-p.done
	p.pub.finish(ctx)
	if p.replay != nil {
		p.replay.stop()
	}
	return ctx.Err()
}

// run publishes until ctx ends, and then what the log has by then.
func (p *Publisher) run(ctx context.Context) {
	defer close(p.done)
	p.greeted = time.Now()
	p.tellAll(ctx)
	var pace pacer
	for {
		pace.wait(ctx)
		wait, cancel := p.untilDue(ctx)
		n, err := p.read(ctx, wait)
		cancel()
		pace.done(n)
		if err != nil {
			break
		}
		p.greet(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	for end := p.opts.Log.Next(); p.next < end; {
		if _, err := p.read(ctx, ctx); err != nil {
			return
		}
	}
}

// untilDue returns a context of ctx that ends when there is work other than an event.
func (p *Publisher) untilDue(ctx context.Context) (context.Context, context.CancelFunc) {
	wait, cancel := context.WithCancel(ctx)
	var due time.Time
	if p.stale {
		due = p.snapshot.Add(renamePause)
	}
	if p.toGreet(cancel) {
		if at := p.greeted.Add(greetPause); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	if due.IsZero() {
		return wait, cancel
	}
	wait, stop := context.WithDeadline(wait, due)
	return wait, func() { stop(); cancel() }
}

// read publishes the next events, or all blocks if events were lost, and returns their number. It
// waits for one until wait ends, which is ctx or part of it.
func (p *Publisher) read(ctx, wait context.Context) (int, error) {
	n, missed, err := p.opts.Log.Read(wait, p.next, p.events)
	switch {
	case err != nil && (ctx.Err() != nil || wait.Err() == nil || errors.Is(err, block.ErrClosed)):
		return 0, err
	case missed > 0:
		p.stats.gaps.Add(1)
		p.log.Warn("events were lost: announcing all blocks again", zap.Uint64("missed", missed))
		p.next = p.opts.Log.Next()
		p.tellAll(ctx)
		return n, nil
	}
	for i := range p.events[:n] {
		p.tell(&p.events[i])
	}
	p.next += uint64(n)
	p.send()
	if p.stale && time.Since(p.snapshot) >= renamePause {
		p.log.Info("a directory was renamed: announcing all blocks again")
		p.next = p.opts.Log.Next()
		p.tellAll(ctx)
	}
	return n, nil
}

// tell adds an event to the message.
func (p *Publisher) tell(ev *event.Event) {
	switch ev.Kind {
	case event.Stored:
		p.store(ev.Key.Group, ev.Key.Hash, ev.Tier)
	case event.Evicted, event.Removed:
		p.remove(ev.Key, ev.Tier)
	case event.Renamed:
		p.remove(ev.From, "")
		names := []string{"memory"}
		if p.opts.Tiers != nil {
			names = p.opts.Tiers(ev.Key.Path())
		}
		p.store(ev.Key.Group, ev.Key.Hash, names...)
	case event.DirRenamed:
		p.stale = p.opts.Snapshot != nil
	}
}

// store adds that tiers have a block.
func (p *Publisher) store(group block.GroupID, hash block.Hash, names ...string) {
	m, known := match{}, false
	for _, name := range names {
		medium, ok := p.media[name]
		if !ok {
			continue
		}
		if !known {
			if m, known = p.find(group, hash); !known {
				return
			}
		}
		if !p.batch.add(false, medium, m) {
			p.stats.unmatched.Add(1)
			return
		}
	}
}

// remove adds that a block is gone from a tier, or from all if tier is "".
func (p *Publisher) remove(k block.Key, tier string) {
	media := p.all
	if tier != "" {
		medium, ok := p.media[tier]
		if !ok {
			return
		}
		p.one[0] = medium
		media = p.one[:]
	}
	m, ok := p.find(k.Group, k.Hash)
	if !ok {
		return
	}
	for _, medium := range media {
		if !p.batch.add(true, medium, m) {
			p.stats.unmatched.Add(1)
			return
		}
	}
}

// find returns the group and hash in a path. They are valid until the next call.
func (p *Publisher) find(group block.GroupID, hash block.Hash) (match, bool) {
	p.path = p.path[:0]
	if group != "" {
		p.path = append(append(p.path, group...), '/')
	}
	p.path = append(p.path, hash...)
	for _, t := range p.templates {
		if m, ok := matchPath(t, p.path); ok {
			return m, true
		}
	}
	p.stats.unmatched.Add(1)
	return match{}, false
}

// send sends the message, if it is not empty.
func (p *Publisher) send() {
	m := p.batch.take(p.opts.Topic)
	switch {
	case m == nil:
	case p.holding:
		p.held = append(p.held, m)
		p.heldSize += len(m.wire)
	default:
		p.post(m)
	}
}

// post sends m and returns the number of subscribers.
func (p *Publisher) post(m *message) int {
	p.history.add(m) // first, so that a subscriber that has the message finds it counted
	return p.pub.send(m)
}
