package publish

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/event"
)

// dial connects to an endpoint without a handshake.
func dial(t testing.TB, endpoint string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// hello is the greeting of a client of a type.
func hello(typ string) []byte {
	return append(greeting(), appendCommand(nil, "READY", appendProperty(nil, "Socket-Type", typ))...)
}

// dialSub connects a subscriber that does nothing else by itself.
func dialSub(t testing.TB, endpoint, topic string) net.Conn {
	t.Helper()
	c := dial(t, endpoint)
	if _, err := c.Write(appendFrame(hello("SUB"), 0, append([]byte{1}, topic...))); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGarbage shows that for any bytes of a client nothing panics, nothing is allocated for claimed
// lengths, the connection ends, and others go on.
func TestGarbage(t *testing.T) {
	evlog := newTestLog(1000)
	p := open(t, Options{Log: evlog, Replay: "tcp://127.0.0.1:0"})
	r := &receiver{t: t, sub: subscribe(t, p, ""), seq: -1}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	huge := binary.BigEndian.AppendUint64([]byte{frameLong}, 1<<62)
	command := appendCommand(nil, "READY", []byte("\x0bSocket-Typ"))
	badSize := appendCommand(nil, "READY", append([]byte("\x0bSocket-Type"), 0xff, 0xff, 0xff, 0xff, 'x'))
	cases := [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat("x", 64)),
		bytes.Repeat([]byte{0}, 64),
		append(greeting(), huge...),
		append(greeting(), append([]byte{frameLong | frameCommand}, huge[1:]...)...),
		append(greeting(), command...),
		append(greeting(), badSize...),
		append(greeting(), appendCommand(nil, "ERROR", nil)...),
		append(greeting(), frameCommand, 0),
		append(greeting(), frameCommand, 1, 200),
		hello("FOO"), hello(""), hello("PUB"),
		append(hello("SUB"), huge...),
		append(hello("DEALER"), huge...),
		append(hello("SUB"), bytes.Repeat([]byte{frameMore, 0}, 100)...),
		append(hello("DEALER"), bytes.Repeat([]byte{frameMore, 0}, 100)...),
		append(hello("DEALER"), frameMore|frameCommand, 1, 0),
		append(hello("SUB"), 0xf8, 1, 1),
	}
	for range 50 {
		b := make([]byte, 64+rng.IntN(200))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		cases = append(cases, b, append(greeting(), b...), append(hello("SUB"), 0xff, b[0]))
	}
	for _, endpoint := range []string{p.Stats().Endpoint, p.Stats().ReplayEndpoint} {
		for i, c := range cases {
			conn := dial(t, endpoint)
			_, _ = conn.Write(c)
			_ = conn.(*net.TCPConn).CloseWrite()
			check(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
			var ne net.Error
			if _, err := io.Copy(io.Discard, conn); errors.As(err, &ne) && ne.Timeout() {
				t.Errorf("case %d: the connection stays", i)
			}
			conn.Close()
		}
	}
	evlog.add(eventOf(event.Stored, "memory", "0/1"))
	want(t, r.next(1), "+CPU 0:1")
}

// TestSlowSubscriber shows that a subscriber that reads nothing does not affect the others: its
// queue is bounded, other messages are dropped and counted, and the others get all.
func TestSlowSubscriber(t *testing.T) {
	evlog := newTestLog(1 << 14)
	p := open(t, Options{Log: evlog, Hash: "text"})
	slow := dialSub(t, p.Stats().Endpoint, "")
	eventually(t, "the slow one", func() bool { return p.Stats().Subscribers == 1 })
	good := dialSub(t, p.Stats().Endpoint, "")
	eventually(t, "the good one", func() bool { return p.Stats().Subscribers == 2 })
	br := bufio.NewReader(good)
	check(t, skipHello(br))
	list := make([]event.Event, readSize)
	for i := range list {
		list[i] = eventOf(event.Stored, "memory", "0/"+strings.Repeat("x", 170)+string(rune('a'+i%26))+strings.Repeat("y", i/26))
	}
	first := int64(-1)
	for last := int64(-1); p.Stats().Dropped == 0; {
		if p.Stats().Subscribers < 2 {
			t.Fatal("disconnected, by writeTimeout, before anything was dropped")
		}
		evlog.add(list...)
		told := p.Stats().Events
		for got := uint64(0); got == 0 || p.Stats().Events < told; got++ {
			_ = good.SetReadDeadline(time.Now().Add(time.Minute))
			seq, _, err := readMessage(br)
			check(t, err)
			if first < 0 {
				first = seq
			} else if seq != last+1 {
				t.Fatalf("message %d after %d", seq, last)
			}
			last = seq
		}
	}
	p.pub.mu.Lock()
	for s := range p.pub.mu.subs {
		if n := s.bytes.Load(); n > queueBytes {
			t.Errorf("%d bytes are queued", n)
		}
	}
	p.pub.mu.Unlock()
	slow.Close()
	eventually(t, "the slow one is gone", func() bool { return p.Stats().Subscribers == 1 })
}

// skipHello reads the greeting and READY.
func skipHello(r *bufio.Reader) error {
	if _, err := r.Discard(greetingSize); err != nil {
		return err
	}
	_, err := receive(r)
	return err
}

// readMessage reads a message, and returns its number and its payload.
func readMessage(r *bufio.Reader) (seq int64, payload []byte, err error) {
	var frames [3][]byte
	for i := range frames {
		if _, frames[i], err = readFrame(r, 1<<20); err != nil {
			return 0, nil, err
		}
	}
	return int64(binary.BigEndian.Uint64(frames[1])), frames[2], nil
}

// TestPing shows that pings are answered with their context, on both sockets.
func TestPing(t *testing.T) {
	p := open(t, Options{Log: newTestLog(10), Replay: "tcp://127.0.0.1:0"})
	for typ, endpoint := range map[string]string{"SUB": p.Stats().Endpoint, "DEALER": p.Stats().ReplayEndpoint} {
		c := dial(t, endpoint)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write(appendCommand(hello(typ), "PING", []byte("\x00\x0acontext"))); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		check(t, skipHello(r))
		if in, err := receive(r); err != nil || in.command != "PONG" || string(in.data) != "context" {
			t.Errorf("%s: %+v, %v", typ, in, err)
		}
	}
}

// FuzzReceive shows that no bytes make the reader of handshakes or messages panic or allocate
// claimed lengths.
func FuzzReceive(f *testing.F) {
	f.Add(hello("SUB"))
	f.Add(append(hello("DEALER"), frameMore, 0, 0, 1, 'x'))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		if handshake(io.Discard, r, "PUB", []string{"SUB"}) != nil {
			return
		}
		for {
			in, err := receive(r)
			if err != nil {
				return
			}
			total := 0
			for _, frame := range in.frames {
				total += len(frame)
			}
			if total > maxInput || len(in.frames) > maxInputParts {
				t.Fatalf("%d bytes in %d frames", total, len(in.frames))
			}
		}
	})
}
