package grave

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// maxBytes bounds the paths of one message of an exchange.
const maxBytes = 256 << 10

// maxTime bounds the time of one exchange: a million graves over a slow link.
const maxTime = time.Minute

// Exchange tells peers the graves of this node and takes theirs. Its methods may be called in
// parallel.
type Exchange struct {
	Index *location.Index
	Epoch uint64 // incarnation of this node, not 0
	Now   func() time.Time

	Sent  func(n int)                             // n graves were sent
	Taken func(path string, dir bool, seq uint64) // a grave came that the index did not have
	Bad   func(far bool)                          // a grave came that makes no sense, or is of a version from the future
}

// Marks says how far the exchange with one peer has come. Only one exchange with a peer runs at a
// time.
type Marks struct {
	turn   chan struct{} // has one element while an exchange is under way
	epoch  uint64        // incarnation of the peer to which the marks belong
	pulled int64         // the peer's mark: what the peer learned before it is here
	pushed int64         // what this node learned before it is at the peer

	clock atomic.Pointer[Clock]
}

// Clock is the difference of two clocks.
type Clock struct {
	Ahead time.Duration // by which the clock of the peer is ahead of this node's
	Error time.Duration // at most, half of the time that the measurement took
}

// Clock returns the clock of the peer as the last exchange found it, nil if the peer did not tell.
func (m *Marks) Clock() *Clock { return m.clock.Load() }

// compare follows that the peer told its time, in nanoseconds since the epoch, after sent and before now.
func (m *Marks) compare(told int64, sent, now time.Time) {
	took := now.Sub(sent)
	m.clock.Store(&Clock{Ahead: time.Unix(0, told).Sub(sent.Add(took / 2)), Error: took / 2})
}

// apart is how far two clocks must differ for the times of graves to be corrected. Below it they are left alone, so that no
// error of the measurement makes a grave younger at each node.
const apart = time.Minute

// ours returns what the clock of this node said at the time that the clock of another one, which is ahead, told.
func ours(told int64, ahead time.Duration) int64 {
	if told <= 0 || ahead.Abs() < apart {
		return told
	}
	return told - int64(ahead)
}

// Ours returns what the clock of this node, which says now, said at the time that the clock of the peer told: the same if
// the clocks are not far apart, if the peer has not told its clock yet, or if it was ahead and seems to be mended.
func (m *Marks) Ours(told int64, now time.Time) int64 {
	if c := m.clock.Load(); c != nil && (told > now.UnixNano() || c.Ahead < 0) {
		return ours(told, c.Ahead)
	}
	return told
}

// NewMarks returns the marks of a peer with which there was no exchange.
func NewMarks() *Marks { return &Marks{turn: make(chan struct{}, 1)} }

// With sends a peer the graves that the peer may not know, and takes the graves of the peer. It
// waits for its turn, and a minute at most for the peer. It returns how many exchanges it made: two
// if the peer turned out to be a new incarnation.
func (x *Exchange) With(ctx context.Context, peer wire.ControlClient, m *Marks) (n uint64, err error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for again := true; again; n++ {
		if again, err = x.once(ctx, peer, m); err != nil {
			return n, err
		}
	}
	return n, nil
}

// once makes one exchange. again says that the peer is another incarnation than the
// one that got the earlier graves.
func (x *Exchange) once(of context.Context, peer wire.ControlClient, m *Marks) (again bool, err error) {
	ctx, cancel := context.WithTimeout(of, maxTime)
	defer cancel()
	begin := x.Now()
	stream, err := peer.Remove(ctx)
	if err != nil {
		return false, control.Error(of, err)
	}
	if err := stream.Send(&wire.Graves{Epoch: m.epoch, Since: m.pulled}); err != nil && !errors.Is(err, io.EOF) {
		return false, control.Error(of, err)
	}
	// The peer sends all of its graves before it reads, so this node sends and receives at the
	// same time. Sending ends with ctx at the latest.
	sent := make(chan error, 1)
	pushed := m.pushed
	go func() {
		err := x.send(m.pushed, &pushed, stream.Send)
		sent <- errors.Join(err, stream.CloseSend())
	}()
	epoch, pulled, err := x.receive(stream, func(told int64) { m.compare(told, begin, x.Now()) })
	if err != nil {
		cancel()
	}
	if e := <-sent; err == nil && e != nil && !errors.Is(e, io.EOF) {
		err = e
	}
	if err != nil {
		return false, control.Error(of, err)
	}
	again = m.epoch != epoch && m.pushed != 0
	if again {
		pushed = 0
	}
	m.epoch, m.pulled, m.pushed = epoch, pulled, pushed
	return again, nil
}

// receive takes all that the peer sends. It calls clock with the time that the peer tells.
func (x *Exchange) receive(stream wire.Control_RemoveClient, clock func(told int64)) (epoch uint64, mark int64, err error) {
	for {
		g, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if epoch == 0 {
				return 0, 0, fmt.Errorf("%w: exchange of graves without an end", rdma.ErrProtocol)
			}
			return epoch, mark, nil
		}
		if err != nil {
			return 0, 0, err
		}
		if now := g.GetNow(); now != 0 {
			clock(now)
		}
		x.take(g)
		if g.GetEpoch() != 0 {
			epoch, mark = g.GetEpoch(), g.GetMark()
		}
	}
}

// send sends the graves learned at or after the time since. It sets mark to the time of
// the last one.
func (x *Exchange) send(since int64, mark *int64, send func(*wire.Graves) error) error {
	msg, size := &wire.Graves{}, 0
	var err error
	flush := func() bool {
		if len(msg.Graves) > 0 {
			x.Sent(len(msg.Graves))
			msg.Now = x.Now().UnixNano()
			err = send(msg)
			msg, size = &wire.Graves{}, 0
		}
		return err == nil
	}
	x.Index.Graves(since, func(g location.Grave) bool {
		*mark = max(*mark, g.Learned)
		msg.Graves = append(msg.Graves, &wire.Grave{Path: []byte(g.Path), Dir: g.Dir, Seq: g.Seq, At: g.At})
		size += len(g.Path)
		return len(msg.Graves) < control.MaxGraves && size < maxBytes || flush()
	})
	flush()
	return err
}

// take enters the graves of a message from another node.
func (x *Exchange) take(msg *wire.Graves) {
	var ahead time.Duration // of the other node's clock; older ones do not tell it with graves
	if now := msg.GetNow(); now != 0 {
		ahead = time.Unix(0, now).Sub(x.Now())
	}
	for _, g := range msg.GetGraves() {
		path := string(g.GetPath())
		if _, err := block.ParseKey(path); err != nil {
			x.Bad(false)
			continue
		}
		if g.GetSeq() > block.MaxSeq {
			x.Bad(true)
			continue
		}
		if x.Index.Bury(location.HashPath(path), g.GetSeq(), g.GetDir(), path, ours(g.GetAt(), ahead)) {
			x.Taken(path, g.GetDir(), g.GetSeq())
		}
	}
}

// Serve is the other side of With, for a peer that calls.
func (x *Exchange) Serve(stream wire.Control_RemoveServer) error {
	ctx, cancel := context.WithTimeout(stream.Context(), maxTime)
	defer cancel()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	since := first.GetSince()
	if first.GetEpoch() != x.Epoch {
		since = 0
	}
	mark := since
	if err := x.send(since, &mark, stream.Send); err != nil {
		return err
	}
	if err := stream.Send(&wire.Graves{Epoch: x.Epoch, Mark: mark, Now: x.Now().UnixNano()}); err != nil {
		return err
	}
	for msg := first; ; {
		x.take(msg)
		if ctx.Err() != nil {
			return control.Status(ctx.Err())
		}
		if msg, err = stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
