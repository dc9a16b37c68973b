package gossip

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

var (
	addrA = netip.MustParseAddrPort("127.0.0.1:1")
	addrB = netip.MustParseAddrPort("127.0.0.1:2")
)

// pass hands a packet to a guard and wants no fault.
func pass(t *testing.T, g *guard, packet []byte, from netip.AddrPort) ([]byte, []outgoing) {
	t.Helper()
	payload, replies, err := g.open(bytes.Clone(packet), from)
	must(t, err)
	return payload, replies
}

// meet makes a know b, and returns the data packet that waited for it.
func meet(t *testing.T, a, b *guard, payload string) []byte {
	t.Helper()
	ask := a.seal(addrB, []byte(payload))
	_, hello := pass(t, b, ask, addrA)
	if len(hello) != 1 || hello[0].to != addrA {
		t.Fatalf("answer to the question: %v", hello)
	}
	_, data := pass(t, a, hello[0].packet, addrB)
	if len(data) != 1 || data[0].to != addrB {
		t.Fatalf("packets after the answer: %v", data)
	}
	return data[0].packet
}

// TestGuard shows that a packet passes once, to the node that it is for, and in no other
// life of it; and that the other side is found again after it has started anew.
func TestGuard(t *testing.T) {
	t.Parallel()
	k := load(t, keyFile(t, 1))
	a, b, other := newGuard(k), newGuard(k), newGuard(k)
	first := meet(t, a, b, "one")
	if got, _ := pass(t, b, first, addrA); string(got) != "one" {
		t.Fatalf("got %q", got)
	}
	second := a.seal(addrB, []byte("two"))
	if got, _ := pass(t, b, second, addrA); string(got) != "two" {
		t.Fatalf("got %q", got)
	}
	for name, p := range map[string][]byte{"first": first, "second": second} {
		if got, replies, err := b.open(bytes.Clone(p), addrA); !errors.Is(err, errReplay) || got != nil || replies != nil {
			t.Errorf("%s again: %q, %v, %v", name, got, replies, err)
		}
		if got, _, err := other.open(bytes.Clone(p), addrA); !errors.Is(err, errStale) || got != nil {
			t.Errorf("%s to another: %q, %v", name, got, err)
		}
	}
	again := newGuard(k)
	lost := a.seal(addrB, []byte("three"))
	_, hello, err := again.open(bytes.Clone(lost), addrA)
	if !errors.Is(err, errStale) || len(hello) != 1 {
		t.Fatalf("packet for the life before: %v, %v", hello, err)
	}
	pass(t, a, hello[0].packet, addrB)
	if _, _, err := a.open(bytes.Clone(hello[0].packet), addrB); !errors.Is(err, errUnasked) {
		t.Errorf("answer that came twice: %v", err)
	}
	if got, _ := pass(t, again, a.seal(addrB, []byte("four")), addrA); string(got) != "four" {
		t.Fatalf("got %q", got)
	}
}

// TestGuardRefusesForgeries shows that any change of a packet, and another key, are
// noticed.
func TestGuardRefusesForgeries(t *testing.T) {
	t.Parallel()
	k := load(t, keyFile(t, 1))
	a, b, foreign := newGuard(k), newGuard(k), newGuard(load(t, keyFile(t, 2)))
	packet := meet(t, a, b, "payload")
	for i := range packet {
		bad := bytes.Clone(packet)
		bad[i] ^= 1
		if got, replies, err := b.open(bad, addrA); !errors.Is(err, errForeign) || got != nil || replies != nil {
			t.Fatalf("byte %d changed: %q, %v, %v", i, got, replies, err)
		}
	}
	for i := range packet {
		if _, _, err := b.open(bytes.Clone(packet[:i]), addrA); !errors.Is(err, errForeign) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	if _, _, err := b.open(foreign.seal(addrB, nil), addrA); !errors.Is(err, errForeign) {
		t.Errorf("other key: %v", err)
	}
	if _, _, err := b.open(b.sign(9, b.life, 1, nil), addrA); !errors.Is(err, errForeign) {
		t.Errorf("unknown kind: %v", err)
	}
	if got, _ := pass(t, b, packet, addrA); string(got) != "payload" {
		t.Errorf("the right one: %q", got)
	}
}

// TestGuardIsBounded shows that neither packets that nobody answers nor new senders take
// memory without end, and that to forget senders lets nothing in again.
func TestGuardIsBounded(t *testing.T) {
	t.Parallel()
	k := load(t, keyFile(t, 1))
	a, b := newGuard(k), newGuard(k)
	for i := range maxPeers + 100 {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1)
		for range maxHeldPeer + 2 {
			a.seal(to, []byte("x"))
		}
	}
	held := 0
	for _, p := range a.peers {
		held += len(p.held)
	}
	if len(a.peers) != maxPeers || held != a.held || held > maxHeld {
		t.Errorf("%d peers, %d packets held, counted as %d", len(a.peers), held, a.held)
	}
	packet := meet(t, newGuard(k), b, "x")
	pass(t, b, packet, addrA)
	life := b.life
	for i := uint64(1); b.life == life; i++ {
		b.fresh(i<<32, 1)
		if len(b.senders) > maxSenders {
			t.Fatalf("%d senders", len(b.senders))
		}
	}
	if _, _, err := b.open(packet, addrA); !errors.Is(err, errStale) {
		t.Errorf("a packet came through again: %v", err)
	}
}

// TestWindow compares the window with a plain set of numbers.
func TestWindow(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var w window
	seen := map[uint64]bool{}
	top := uint64(0)
	for range 200000 {
		n := top + 1 + rnd.Uint64N(3)
		switch rnd.IntN(100) {
		case 0:
			n += rnd.Uint64N(3 * windowBits)
		case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20:
			n = 1 + top - min(top, rnd.Uint64N(windowBits+windowBits/4))
		}
		want := !seen[n] && n+windowBits > top
		if got := w.first(n); got != want {
			t.Fatalf("%d with %d on top: %v, want %v", n, top, got, want)
		}
		seen[n] = true
		top = max(top, n)
	}
}

// FuzzGuard shows that no bytes upset a guard, and that none pass without a key.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{packetMagic, kindData})
	f.Add(make([]byte, sealOverhead))
	f.Add(append([]byte{packetMagic, kindHello}, make([]byte, sealOverhead)...))
	set := &keySet{packets: [][]byte{[]byte("key")}}
	k := &Keyring{}
	k.set.Store(set)
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newGuard(k)
		if payload, replies, err := g.open(b, addrA); err == nil || payload != nil || replies != nil {
			t.Errorf("passed: %q, %v", payload, replies)
		}
		if len(b) >= headerBytes { // as somebody with a key could send it
			g.life = 1
			_, _, _ = g.open(append(bytes.Clone(b), tag(set.packets[0], b)...), addrA)
		}
	})
}
