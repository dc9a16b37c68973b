package publish

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Limits of the queue of one subscriber.
const (
	queueMessages = 4096
	queueBytes    = 8 << 20
)

// pub is the PUB socket: one queue and one writer for each subscriber, so subscribers do not affect
// each other.
type pub struct {
	*server
	topic   string
	dropped atomic.Uint64 // messages that a subscriber did not get

	mu struct {
		sync.Mutex
		finished bool
		subs     map[*subscriber]struct{}
		wake     func() // called when there is a new subscriber; may be nil
	}
}

// subscriber is a peer of the PUB socket.
type subscriber struct {
	queue  chan []byte // messages and answers to pings, in wire form
	bytes  atomic.Int64
	counts []int        // subscriptions by the length of the prefix of the topic; of the reader
	wants  atomic.Int64 // their sum
	told   bool         // it got a message since it began to subscribe; guarded by pub.mu
}

// newPub makes a socket on ln, which may be nil, that also connects to endpoints.
func newPub(ln net.Listener, endpoints []string, topic string, log *zap.Logger) *pub {
	p := &pub{topic: topic, server: newServer(ln, "PUB", []string{"SUB", "XSUB"}, log)}
	p.mu.subs = make(map[*subscriber]struct{})
	p.start(p.run, endpoints...)
	return p
}

// send gives m to all subscribers of the topic, without waiting, and returns their number.
func (p *pub) send(m *message) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.mu.subs {
		if s.wants.Load() <= 0 {
			continue
		}
		n++
		s.told = true
		if !s.push(m.wire) {
			p.dropped.Add(1)
		}
	}
	return n
}

// expectant returns how many subscribers have got nothing yet. From now on wake is called when
// there is one more.
func (p *pub) expectant(wake func()) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.wake = wake
	for s := range p.mu.subs {
		if s.wants.Load() > 0 && !s.told {
			n++
		}
	}
	return n
}

// push queues wire for writing. It returns false if the queue is full.
func (s *subscriber) push(wire []byte) bool {
	if s.bytes.Load()+int64(len(wire)) > queueBytes {
		return false
	}
	select {
	case s.queue <- wire:
		s.bytes.Add(int64(len(wire)))
		return true
	default:
		return false
	}
}

// subscribers returns the number of subscribers.
func (p *pub) subscribers() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.mu.subs {
		if s.wants.Load() > 0 {
			n++
		}
	}
	return n
}

// behind reports whether the queue of some subscriber is long.
func (p *pub) behind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.mu.subs {
		if len(s.queue) > queueMessages/4 || s.bytes.Load() > queueBytes/4 {
			return true
		}
	}
	return false
}

// run serves a subscriber: this goroutine reads, another one writes.
func (p *pub) run(c *conn) {
	s := &subscriber{queue: make(chan []byte, queueMessages), counts: make([]int, len(p.topic)+1)}
	p.mu.Lock()
	if p.mu.finished {
		p.mu.Unlock()
		return
	}
	p.mu.subs[s] = struct{}{}
	p.mu.Unlock()

	gone := make(chan struct{})
	written := make(chan struct{})
	go func() { // ends when the queue is closed or the connection is; this function waits for it
		defer close(written)
		s.write(c, gone)
	}()
	err := p.read(c, s)
	p.log.Debug("subscriber left", zap.Error(err))
	p.mu.Lock()
	delete(p.mu.subs, s)
	p.mu.Unlock()
	close(gone)
	c.Close()
	<-written
}

// read follows the commands of the subscriber, until it hangs up, or subscribes to nothing for too
// long.
func (p *pub) read(c *conn, s *subscriber) error {
	idle := false
	for {
		if none := c.to == "" && s.wants.Load() <= 0; none != idle {
			var by time.Time
			if idle = none; none {
				by = time.Now().Add(time.Duration(p.idle.Load()))
			}
			if err := c.SetReadDeadline(by); err != nil {
				return err
			}
		}
		in, err := receive(c.r)
		if err != nil {
			return err
		}
		switch {
		case in.command == "SUBSCRIBE":
			p.subscribe(s, in.data, 1)
		case in.command == "CANCEL":
			p.subscribe(s, in.data, -1)
		case in.command == "PING":
			p.pong(s, in.data)
		case len(in.frames) == 1 && len(in.frames[0]) > 0:
			switch prefix := in.frames[0][1:]; in.frames[0][0] {
			case 1:
				p.subscribe(s, prefix, 1)
			case 0:
				p.subscribe(s, prefix, -1)
			}
		}
	}
}

// subscribe counts a subscription, or the end of one. Subscriptions to other topics are not kept.
func (p *pub) subscribe(s *subscriber, prefix []byte, by int) {
	if !bytes.HasPrefix([]byte(p.topic), prefix) || s.counts[len(prefix)]+by < 0 {
		return
	}
	s.counts[len(prefix)] += by
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.wants.Add(int64(by)) == int64(by) && by > 0 {
		s.told = false
		if p.mu.wake != nil {
			p.mu.wake()
		}
	}
}

// pong answers a ping. The data of a ping are a time and a context.
func (p *pub) pong(s *subscriber, data []byte) {
	if len(data) < 2 {
		return
	}
	wire := appendCommand(nil, "PONG", data[2:])
	p.mu.Lock() // the queue may be closed
	defer p.mu.Unlock()
	if !p.mu.finished {
		s.push(wire)
	}
}

// write writes the queue until it is closed, the peer is gone, or the peer takes nothing.
func (s *subscriber) write(c *conn, gone <-chan struct{}) {
	defer c.Close() // ends read
	for {
		select {
		case wire, ok := <-s.queue:
			if !ok {
				s.hangUp(c, gone)
				return
			}
			s.bytes.Add(-int64(len(wire)))
			if _, err := c.w.Write(wire); err != nil {
				return
			}
			if len(s.queue) == 0 && c.w.Flush() != nil {
				return
			}
		case <-gone:
			return
		}
	}
}

// hangUp writes the remaining bytes and waits for the peer to hang up as well: closing at once
// could cost the peer its last messages.
func (s *subscriber) hangUp(c *conn, gone <-chan struct{}) {
	if c.w.Flush() != nil {
		return
	}
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(closeTimeout)) != nil {
		return
	}
	<-gone // read sees the peer's end, or the deadline
}

// finish writes all queues, within ctx, and closes the socket.
func (p *pub) finish(ctx context.Context) {
	p.refuse()
	p.mu.Lock()
	if !p.mu.finished {
		p.mu.finished = true
		for s := range p.mu.subs {
			close(s.queue)
		}
		clear(p.mu.subs)
	}
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, p.stop) // closes the connections that take longer
	p.wg.Wait()
	stop()
	p.stop()
}
