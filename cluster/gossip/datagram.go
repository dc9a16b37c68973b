package gossip

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Layout of a packet with a keyring; numbers are big-endian:
//
//	 0  magic    1 byte, packetMagic
//	 1  kind     1 byte
//	 2  to       8 bytes, the life of the receiver
//	10  from     8 bytes, the life of the sender
//	18  counter  8 bytes
//	26  payload  data only: memberlist's packet, which it has encrypted
//	 *  tag      16 bytes, of HMAC-SHA256 over all before it
const (
	packetMagic  = 0xd7 // no message type of memberlist
	headerBytes  = 26
	tagBytes     = 16
	sealOverhead = headerBytes + tagBytes
)

// Kinds of packets.
const (
	kindAsk   = 1 // "which life are you?"; to is 0
	kindHello = 2 // from is the answer; counter is that of the answered packet
	kindData  = 3
)

const (
	// windowBits is how far packets of one sender may overtake each other. A sender has one
	// counter for all receivers, so this is much more than two nodes need.
	windowBits = 1024

	// sentRing is how many of the latest packets a hello may answer.
	sentRing = 4096

	// maxSenders and maxPeers bound the memory for other nodes. maxHeld bounds the packets of
	// all peers that wait for a hello, maxHeldPeer those of one peer.
	maxSenders  = maxNodes
	maxPeers    = maxNodes
	maxHeld     = 1024
	maxHeldPeer = 8

	// askEvery is the shortest time between two questions to one peer.
	askEvery = 100 * time.Millisecond
)

// Reasons to refuse a packet.
var (
	errForeign = errors.New("packet without a key of this cluster")
	errReplay  = errors.New("packet that came before")
	errStale   = errors.New("packet for another node or an earlier life of this one")
	errUnasked = errors.New("answer that was not asked for")
)

// guard accepts each packet of a node with a key once, and refuses all other packets.
//
// Every node draws a random number when it starts: its life. A packet names the life of its
// receiver. So guard refuses a packet that was recorded before this node started, or that was
// meant for another node. A packet also names the life of its sender and a counter, so guard
// refuses a packet that came already. This needs no synchronous clocks and no memory that
// outlasts the process. An attacker can still delay a packet, but only until windowBits later
// ones have come.
//
// A node learns the life of a peer by a question and an answer, before its first packet to the
// peer's address. It learns it again when the peer has restarted: a node that gets a packet
// for another life answers with its own. The answer names the counter of the packet that it
// answers, and counts once, so guard refuses an old answer as well. guard retries nothing and
// has no timer: newer packets replace those that no node answers, and memberlist tolerates the
// loss.
type guard struct {
	keys *Keyring

	mu      sync.Mutex // guards the fields below; not held while sending
	life    uint64     // of this node
	counter uint64     // of the last packet sent
	sent    [sentRing]sentPacket
	peers   map[netip.AddrPort]*peer
	held    int // packets in all peers
	senders map[uint64]*window
}

// peer is what this node knows of one address.
type peer struct {
	life  uint64 // 0: unknown
	asked time.Time
	held  [][]byte // wait for life, oldest first
}

// sentPacket is a packet that a hello may answer.
type sentPacket struct {
	counter uint64
	to      netip.AddrPort
}

// outgoing is a packet to be sent.
type outgoing struct {
	to     netip.AddrPort
	packet []byte
}

func newGuard(keys *Keyring) *guard {
	return &guard{keys: keys, life: newLife(), peers: map[netip.AddrPort]*peer{}, senders: map[uint64]*window{}}
}

// newLife draws a number that is not 0.
func newLife() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// seal returns the packet that carries payload, or nil if payload has to wait.
func (g *guard) seal(to netip.AddrPort, payload []byte) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.peer(to)
	if p.life != 0 {
		return g.packet(kindData, to, p.life, payload)
	}
	g.hold(p, payload)
	if time.Since(p.asked) < askEvery {
		return nil
	}
	p.asked = time.Now()
	return g.packet(kindAsk, to, 0, nil)
}

// peer returns the entry of an address, a new one if need be. The caller holds mu.
func (g *guard) peer(to netip.AddrPort) *peer {
	if p := g.peers[to]; p != nil {
		return p
	}
	if len(g.peers) >= maxPeers {
		for a, old := range g.peers { // any one: it is asked again if needed
			g.held -= len(old.held)
			delete(g.peers, a)
			break
		}
	}
	p := &peer{}
	g.peers[to] = p
	return p
}

// hold keeps a copy of payload, and drops the oldest one if there are too many. The caller
// holds mu.
func (g *guard) hold(p *peer, payload []byte) {
	if len(p.held) >= maxHeldPeer {
		p.held = p.held[1:]
		g.held--
	}
	if g.held >= maxHeld {
		return
	}
	p.held = append(p.held, append([]byte(nil), payload...))
	g.held++
}

// packet makes a packet with the next counter. The caller holds mu.
func (g *guard) packet(kind byte, to netip.AddrPort, life uint64, payload []byte) []byte {
	g.counter++
	g.sent[g.counter%sentRing] = sentPacket{g.counter, to}
	return g.sign(kind, life, g.counter, payload)
}

func (g *guard) sign(kind byte, life, counter uint64, payload []byte) []byte {
	b := make([]byte, headerBytes, sealOverhead+len(payload))
	b[0], b[1] = packetMagic, kind
	binary.BigEndian.PutUint64(b[2:], life)
	binary.BigEndian.PutUint64(b[10:], g.life)
	binary.BigEndian.PutUint64(b[18:], counter)
	b = append(b, payload...)
	return append(b, tag(g.keys.set.Load().packets[0], b)...)
}

func tag(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:tagBytes]
}

// signed reports whether the tag of a packet fits any of our keys.
func (g *guard) signed(b []byte) bool {
	if len(b) < sealOverhead || b[0] != packetMagic {
		return false
	}
	body, have := b[:len(b)-tagBytes], b[len(b)-tagBytes:]
	for _, key := range g.keys.set.Load().packets {
		if hmac.Equal(have, tag(key, body)) {
			return true
		}
	}
	return false
}

// open checks a packet. It returns the payload for memberlist, if any, as a part of b; the
// packets to send in reply; and why the packet is refused.
func (g *guard) open(b []byte, from netip.AddrPort) (payload []byte, replies []outgoing, err error) {
	if !g.signed(b) {
		return nil, nil, errForeign
	}
	kind, to, life, counter := b[1], binary.BigEndian.Uint64(b[2:]), binary.BigEndian.Uint64(b[10:]), binary.BigEndian.Uint64(b[18:])
	g.mu.Lock()
	defer g.mu.Unlock()
	switch kind {
	case kindAsk:
		return nil, []outgoing{{from, g.sign(kindHello, life, counter, nil)}}, nil
	case kindHello:
		replies, err = g.hello(to, life, counter)
		return nil, replies, err
	case kindData:
		if to != g.life {
			return nil, []outgoing{{from, g.sign(kindHello, life, counter, nil)}}, errStale
		}
		if !g.fresh(life, counter) {
			return nil, nil, errReplay
		}
		return b[headerBytes : len(b)-tagBytes], nil, nil
	}
	return nil, nil, errForeign
}

// hello processes the answer to a packet and returns the packets that waited for it. The
// caller holds mu.
func (g *guard) hello(to, life, counter uint64) ([]outgoing, error) {
	s := &g.sent[counter%sentRing]
	if to != g.life || counter == 0 || s.counter != counter || life == 0 {
		return nil, errUnasked
	}
	addr := s.to
	*s = sentPacket{}
	p := g.peer(addr)
	p.life = life
	held := p.held
	p.held = nil
	g.held -= len(held)
	out := make([]outgoing, len(held))
	for i, payload := range held {
		out[i] = outgoing{addr, g.packet(kindData, addr, life, payload)}
	}
	return out, nil
}

// fresh records a packet and reports whether it came for the first time. The caller holds mu.
func (g *guard) fresh(life, counter uint64) bool {
	w := g.senders[life]
	if w == nil {
		if len(g.senders) >= maxSenders {
			// Forgetting one sender would make its old packets new again. A new life of this
			// node makes all earlier packets stale, and all peers learn it.
			clear(g.senders)
			g.life = newLife()
		}
		w = &window{}
		g.senders[life] = w
	}
	return w.first(counter)
}

// window remembers the last windowBits counters of a sender (as RFC 6479 does).
type window struct {
	top  uint64
	bits [windowBits / 64]uint64 // a ring: bit n%windowBits stands for counter n
}

// first reports whether n is new and not too old to judge.
func (w *window) first(n uint64) bool {
	if n > w.top {
		for i := range min(n-w.top, windowBits) {
			c := w.top + 1 + i
			w.bits[c/64%(windowBits/64)] &^= 1 << (c % 64)
		}
		w.top = n
	} else if w.top-n >= windowBits {
		return false
	}
	word, bit := &w.bits[n/64%(windowBits/64)], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
