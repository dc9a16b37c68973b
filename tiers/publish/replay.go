package publish

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// historyBytes bounds the messages kept for replays.
const historyBytes = 64 << 20

// history holds the latest messages and counts all. Its methods may be called in parallel.
type history struct {
	mu struct {
		sync.Mutex
		ring   []*message // message n is at n modulo its length
		first  uint64     // of the kept messages
		next   uint64     // number of the next message
		hashes uint64     // in all messages ever
		bytes  int
	}
}

func newHistory(size int) *history {
	h := &history{}
	h.mu.ring = make([]*message, size)
	return h
}

// add keeps m and numbers it.
func (h *history) add(m *message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	size := uint64(len(h.mu.ring))
	m.setNumber(h.mu.next)
	for h.mu.next-h.mu.first == size || h.mu.first < h.mu.next && h.mu.bytes+len(m.wire) > historyBytes {
		old := &h.mu.ring[h.mu.first%size]
		h.mu.bytes -= len((*old).wire)
		*old = nil
		h.mu.first++
	}
	h.mu.ring[h.mu.next%size] = m
	h.mu.bytes += len(m.wire)
	h.mu.hashes += uint64(m.hashes)
	h.mu.next++
}

// get returns the first message from number n on and before end, and its number, or nil.
func (h *history) get(n, end uint64) (*message, uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n = max(n, h.mu.first); n >= min(end, h.mu.next) {
		return nil, n
	}
	return h.mu.ring[n%uint64(len(h.mu.ring))], n
}

// totals returns the number of messages so far, and of the hashes in them.
func (h *history) totals() (messages, hashes uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.next, h.mu.hashes
}

// end returns the number of the next message.
func (h *history) end() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.next
}

// replay is the ROUTER socket for lost messages. Each connection has its own goroutine, so no
// identities are needed.
type replay struct {
	*server
	history *history
	bare    bool          // without the topic
	served  atomic.Uint64 // requests
}

func newReplay(ln net.Listener, h *history, bare bool, log *zap.Logger) *replay {
	r := &replay{server: newServer(ln, "ROUTER", []string{"REQ", "DEALER", "ROUTER"}, log), history: h, bare: bare}
	r.start(r.run)
	return r
}

func (r *replay) run(c *conn) {
	for {
		in, err := receive(c.r)
		if err != nil {
			r.log.Debug("replay client left", zap.Error(err))
			return
		}
		switch {
		case in.command == "PING" && len(in.data) >= 2:
			_, err = c.w.Write(appendCommand(nil, "PONG", in.data[2:]))
		case in.command != "":
		case len(in.frames) == 2 && len(in.frames[0]) == 0 && len(in.frames[1]) == 8:
			err = r.answer(c, binary.BigEndian.Uint64(in.frames[1]))
		default:
			r.log.Debug("malformed replay request ignored", zap.Int("frames", len(in.frames)))
		}
		if err == nil {
			err = c.w.Flush()
		}
		if err != nil {
			r.log.Debug("answering a replay request failed", zap.Error(err))
			return
		}
	}
}

// answer writes all messages from number n on, and the end: number -1 and nothing. Each message is
// as subscribers got it, behind the empty frame that ends the addresses. The topic of the end is
// empty.
func (r *replay) answer(c *conn, n uint64) error {
	r.served.Add(1)
	delimiter := appendFrame(nil, frameMore, nil)
	for end := r.history.end(); ; n++ {
		var m *message
		if m, n = r.history.get(n, end); m == nil {
			break
		}
		if _, err := c.w.Write(delimiter); err != nil {
			return err
		}
		if _, err := c.w.Write(m.frames(r.bare)); err != nil {
			return err
		}
	}
	last := delimiter
	if !r.bare {
		last = appendFrame(last, frameMore, nil)
	}
	last = appendFrame(last, frameMore, binary.BigEndian.AppendUint64(nil, ^uint64(0)))
	_, err := c.w.Write(appendFrame(last, 0, nil))
	return err
}
