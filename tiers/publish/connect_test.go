package publish

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

// wireSub is a subscriber whose connections the test makes and ends itself.
type wireSub struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

// newWireSub greets the publisher at the other end of conn and subscribes to all.
func newWireSub(t testing.TB, conn net.Conn) *wireSub {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	s := &wireSub{t: t, conn: conn, r: bufio.NewReader(conn)}
	if _, err := conn.Write(appendFrame(hello("SUB"), 0, []byte{1})); err != nil {
		t.Fatal(err)
	}
	check(t, skipHello(s.r))
	return s
}

// next returns the number of the next message and its events.
func (s *wireSub) next() (int64, []string) {
	s.t.Helper()
	seq, payload, err := readMessage(s.r)
	check(s.t, err)
	return seq, changes(s.t, payload)
}

// bindWire binds an endpoint for publishers to connect to.
func bindWire(t testing.TB, endpoint string) net.Listener {
	t.Helper()
	ln, err := listen(testContext(t), endpoint)
	check(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// accept returns the next connection to ln.
func accept(t testing.TB, ln net.Listener) net.Conn {
	t.Helper()
	if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(time.Now().Add(time.Minute))
	}
	c, err := ln.Accept()
	check(t, err)
	return c
}

// blocksOf makes a snapshot of one block in memory.
func blocksOf(path string) func(context.Context, func(string, int64, []string) error) error {
	return func(_ context.Context, fn func(string, int64, []string) error) error {
		return fn(path, 1, []string{"memory"})
	}
}

// openConnected opens a publisher, which may be bound nowhere.
func openConnected(t testing.TB, o Options) *Publisher {
	t.Helper()
	p, err := Open(context.Background(), o)
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // closes at once
		_ = p.Close(ctx)
	})
	return p
}

// TestConnect shows that the publisher connects to bound subscribers of another implementation,
// over TCP and a Unix socket. They count as subscribers, and get everything: the start, for which
// they come too late, and what happens then (A39).
func TestConnect(t *testing.T) {
	for _, endpoint := range []string{"tcp://" + ownHost() + ":0", "ipc://" + filepath.Join(t.TempDir(), "s")} {
		if strings.HasPrefix(endpoint, "tcp") {
			ln := bindWire(t, endpoint)
			endpoint = "tcp://" + ln.Addr().String()
			ln.Close()
		}
		evlog := newTestLog(1000)
		p := openConnected(t, Options{Log: evlog, Connect: []string{endpoint}, Topic: "kv-events", Snapshot: blocksOf("0/5")})
		eventually(t, "the start is told to nobody", func() bool { return p.Stats().Messages == 2 })
		sub := zmq4.NewSub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
		defer sub.Close()
		check(t, sub.SetOption(zmq4.OptionSubscribe, "kv"))
		check(t, sub.Listen(endpoint))
		r := &receiver{t: t, sub: sub, topic: "kv-events", seq: -1}
		want(t, r.next(2), "clear", "+CPU 0:5")
		evlog.add(eventOf(event.Stored, "memory", "0/10"))
		want(t, r.next(1), "+CPU 0:16")
		if s := p.Stats(); s.Subscribers != 1 || s.Endpoint != "" {
			t.Errorf("%+v", s)
		}
		evlog.add(eventOf(event.Stored, "memory", "0/20"))
		if err := p.Close(testContext(t)); err != nil {
			t.Error(err)
		}
		want(t, r.next(1), "+CPU 0:32")
	}
}

// TestConnectAgain shows that the publisher connects to a subscriber that comes late, hangs up,
// talks nonsense, or goes away and comes back. A bound subscriber and a connecting one get the
// same.
func TestConnectAgain(t *testing.T) {
	before := runtime.NumGoroutine()
	ln := bindWire(t, "tcp://"+ownHost()+":0")
	endpoint := "tcp://" + ln.Addr().String()
	ln.Close() // no subscriber is there yet
	evlog := newTestLog(1000)
	p := open(t, Options{Log: evlog, Connect: []string{endpoint}, Snapshot: blocksOf("0/5")})
	eventually(t, "the start is told to nobody", func() bool { return p.Stats().Messages == 2 })
	own := newWireSub(t, dial(t, p.Stats().Endpoint))

	ln = bindWire(t, endpoint)
	accept(t, ln).Close()
	c := accept(t, ln)
	if _, err := c.Write(slices.Repeat([]byte("HTTP/1.1 400\r\n"), 10)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	sub := newWireSub(t, accept(t, ln))
	eventually(t, "two subscribers", func() bool { return p.Stats().Subscribers == 2 })
	sub.conn.Close()
	ln.Close()
	eventually(t, "one subscriber", func() bool { return p.Stats().Subscribers == 1 })
	evlog.add(eventOf(event.Stored, "memory", "0/10")) // which it misses
	eventually(t, "all of that", func() bool { return p.Stats().Snapshots == 2 && p.Stats().Events == 3 })

	ln = bindWire(t, endpoint)
	sub = newWireSub(t, accept(t, ln))
	first, list := sub.next() // though nothing happens
	want(t, list)
	evlog.add(eventOf(event.Stored, "memory", "0/11"))
	seq, list := sub.next()
	want(t, list, "+CPU 0:17")
	if seq != first+1 {
		t.Errorf("message %d after %d", seq, first)
	}
	for last := int64(-1); last < seq; {
		n, _ := own.next()
		if last >= 0 && n != last+1 {
			t.Fatalf("message %d after %d", n, last)
		}
		last = n
	}
	sub.conn.Close()
	ln.Close()
	own.conn.Close()
	if err := p.Close(testContext(t)); err != nil { // while it tries
		t.Error(err)
	}
	eventually(t, "no goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// TestConnectBeside shows that strangers that hold all incoming connections do not keep out a
// subscriber to which kvfs connects, and that such a subscriber does not keep out a stranger.
func TestConnectBeside(t *testing.T) {
	for _, first := range []bool{false, true} {
		endpoint := "ipc://" + filepath.Join(t.TempDir(), "s")
		connected := func() { newWireSub(t, accept(t, bindWire(t, endpoint))).next() }
		p := open(t, Options{Log: newTestLog(10), Connect: []string{endpoint}, Snapshot: blocksOf("0/5")})
		n := 0
		if first {
			connected()
			n++
		}
		for range maxAddrConns {
			newWireSub(t, dial(t, p.Stats().Endpoint))
			n++
		}
		eventually(t, "all that may come", func() bool { return p.Stats().Subscribers == n })
		if !first {
			connected()
			n++
		}
		if got := p.Stats().Subscribers; got != n {
			t.Errorf("connected first %t: got %d subscribers, want %d", first, got, n)
		}
	}
}

// TestConnectOptions shows which endpoints kvfs cannot connect to.
func TestConnectOptions(t *testing.T) {
	many := make([]string, maxConnect+1)
	for i := range many {
		many[i] = "ipc:///x" + strings.Repeat("x", i)
	}
	for text, list := range map[string][]string{
		"connect[1]: \"tcp://a:1\" is there twice": {"tcp://a:1", "tcp://a:1"},
		"connect[0]: endpoint \"udp://a:1\"":       {"udp://a:1"},
		"connect[1]: endpoint \"tcp://*:1\"":       {"tcp://a:1", "tcp://*:1"},
		"connect[0]: endpoint \"tcp://a:0\"":       {"tcp://a:0"},
		"connect[0]: endpoint \"tcp://a:*\"":       {"tcp://a:*"},
		"connect[0]: endpoint \"tcp://[::]:1\"":    {"tcp://[::]:1"},
		"connect: 65 endpoints, want at most 64":   many,
	} {
		_, err := Open(context.Background(), Options{Log: newTestLog(10), Connect: list})
		if !errors.Is(err, block.ErrInvalid) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "bind") {
			t.Errorf("%q: got %v", list, err)
		}
	}
}

// TestGreetAfterRestart shows what subscribers get that come back to another daemon while nothing
// happens: one message for all of them to forget everything, and then all blocks. A later
// subscriber gets a number, from which it sees that it has missed something.
func TestGreetAfterRestart(t *testing.T) {
	p := open(t, Options{Log: newTestLog(10), Bind: "tcp://" + ownHost() + ":0", Snapshot: blocksOf("0/5")})
	endpoint := p.Stats().Endpoint
	sub := newWireSub(t, dial(t, endpoint))
	for list := []string(nil); !slices.Contains(list, "+CPU 0:5"); {
		_, list = sub.next()
	}
	check(t, p.Close(testContext(t)))
	sub.conn.Close()

	p = open(t, Options{Log: newTestLog(10), Bind: endpoint, Snapshot: blocksOf("0/6")})
	eventually(t, "the start is told to nobody", func() bool { return p.Stats().Messages == 2 })
	subs := make([]*wireSub, 3)
	for i := range subs {
		subs[i] = newWireSub(t, dial(t, endpoint))
	}
	seq, list := subs[0].next()
	want(t, list, "clear")
	if seq != 2 {
		t.Errorf("message %d", seq)
	}
	seq, list = subs[0].next()
	want(t, list, "+CPU 0:6")
	late := newWireSub(t, dial(t, endpoint))
	n, list := late.next()
	want(t, list)
	if n <= seq {
		t.Errorf("message %d after %d", n, seq)
	}
	if s := p.Stats(); s.Snapshots != 2 {
		t.Errorf("%+v", s)
	}
}

// TestGreetPause shows that many new subscribers cause few messages, and that each of them gets
// one.
func TestGreetPause(t *testing.T) {
	start := time.Now()
	p := open(t, Options{Log: newTestLog(10)})
	var subs []*wireSub
	for range 40 {
		subs = append(subs, newWireSub(t, dial(t, p.Stats().Endpoint)))
	}
	for _, s := range subs {
		s.next()
	}
	if n, most := p.Stats().Messages, uint64(2+time.Since(start)/greetPause); n > most {
		t.Errorf("%d messages, want at most %d", n, most)
	}
}
