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
	kindAsk   = 1 // who are you? to is 0
	kindHello = 2 // from is the answer; counter is that of the packet that it answers
	kindData  = 3
)

const (
	// windowBits is how far packets of one sender may overtake each other. Its counter
	// runs over all receivers, so this is much more than between two nodes.
	windowBits = 1024

	// sentRing is how many packets back a hello may refer.
	sentRing = 4096

	// maxSenders and maxPeers bound the memory for others; maxHeld that for packets
	// which wait for a hello, of all peers, and maxHeldPeer of one.
	maxSenders  = maxNodes
	maxPeers    = maxNodes
	maxHeld     = 1024
	maxHeldPeer = 8

	// askEvery is the least time between two questions to one peer.
	askEvery = 100 * time.Millisecond
)

// What is wrong with a packet.
var (
	errForeign = errors.New("packet without a key of this cluster")
	errReplay  = errors.New("packet that came before")
	errStale   = errors.New("packet for another node or an earlier life of this one")
	errUnasked = errors.New("answer that was not asked for")
)

// guard lets each packet of those who hold a key through once, and no other.
//
// Every node draws a random number when it starts, its life. A packet names the life of
// the node that it is for, so one that was recorded before this node started, or on its
// way to another node, is refused; and it names the life of its sender and a counter, so
// that one which came already is refused too. That needs neither clocks that agree nor
// memory that outlasts the process. What remains possible is to hold a packet back, and
// only until windowBits later ones have come.
//
// The life of a peer is learned by a question and an answer before the first packet to
// its address, and again when it has started anew: whoever gets a packet for another
// life answers with its own. The answer names the counter of the packet that it answers,
// and counts once, so an old answer is refused as well. Nothing is retried here and no
// timer runs: packets that nobody answers are forgotten when others take their place,
// and memberlist bears the loss.
type guard struct {
	keys *Keyring

	mu      sync.Mutex // guards the fields below; not held while sending
	life    uint64     // of this node
	counter uint64     // of the packet sent last
	sent    [sentRing]sentPacket
	peers   map[netip.AddrPort]*peer
	held    int // packets in all peers
	senders map[uint64]*window
}

// peer is what is known of one address.
type peer struct {
	life  uint64 // 0: not known
	asked time.Time
	held  [][]byte // until life is known, oldest first
}

// sentPacket is one that a hello may answer.
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

// seal returns the packet to be sent instead of payload; nil if payload waits.
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

// peer finds or makes what is known of an address; the caller holds mu.
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

// hold keeps a copy of payload, at the cost of the oldest; the caller holds mu.
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

// packet makes a packet with the next counter; the caller holds mu.
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

// signed reports whether a packet has the tag of any of our keys.
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

// open checks a packet and returns what it carries for memberlist, if anything, what is
// to be sent because of it, and what is wrong with it. The payload is part of b.
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

// hello takes the answer to a packet and returns what waited for it; the caller holds mu.
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

// fresh reports whether a packet comes for the first time, and notes it; the caller
// holds mu.
func (g *guard) fresh(life, counter uint64) bool {
	w := g.senders[life]
	if w == nil {
		if len(g.senders) >= maxSenders {
			// To forget one sender would make its packets new again. With a new life
			// of our own all packets so far are stale, and all others learn it.
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

// first reports whether n has not been seen, and is not too old to tell.
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
