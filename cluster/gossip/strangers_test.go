package gossip

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// badPackets are packets that no member sends.
func badPackets() map[string][]byte {
	return map[string][]byte{
		"unknown type":       {99, 1, 2, 3},
		"label":              {244, 3, 'a', 'b', 'c', 0},
		"cut label":          {244, 30, 'a'},
		"empty label":        {244, 0},
		"checksum":           {12, 1, 2, 3, 4, 0, 0},
		"cut compound":       {7, 9, 0},
		"short compound":     {7, 1, 0, 50, 3},
		"empty compound":     {7},
		"compressed rubbish": {9, 0xff, 0xff},
		"ping":               {0, 0xff},
		"indirect ping":      {1, 0xff},
		"ack":                {2, 0xff},
		"suspect":            {3, 0xff},
		"alive":              {4, 0xff},
		"alive of nobody":    {4, 0x80},
		"dead":               {5, 0xff},
		"nack":               {11, 0xff},
		"encrypted":          bytes.Repeat([]byte{1}, 100),
		"empty":              {},
		"too large":          make([]byte, maxPacket+1),
		"largest of all":     make([]byte, 60000),
	}
}

// badStreams are what no member sends over a stream.
func badStreams() map[string][]byte {
	huge := binary.BigEndian.AppendUint32([]byte{10}, 0xffffffff)
	return map[string][]byte{
		"unknown type":   {99, 1, 2},
		"http":           []byte("GET / HTTP/1.1\r\n\r\n"),
		"label":          {244, 3, 'a', 'b', 'c', 0},
		"empty label":    {244, 0, 0},
		"encrypted":      append(binary.BigEndian.AppendUint32([]byte{10}, 50), make([]byte, 50)...),
		"huge":           huge,
		"compressed":     {9, 0xff, 0xff},
		"push/pull":      {6, 0xff, 0xff},
		"push/pull nils": {6, 0x83, 0xa5, 'N', 'o', 'd', 'e', 's', 0xce, 0x7f, 0xff, 0xff, 0xff},
		"user message":   {8, 0x81, 0xaa, 'U', 's', 'e', 'r', 'M', 's', 'g', 'L', 'e', 'n', 0xce, 0x7f, 0xff, 0xff, 0xff},
		"ping":           {0, 0xff},
	}
}

// TestStrangers shows that packets and streams that are malformed, too large or without
// a key change nothing and are counted, with and without a keyring, and that the log is
// not filled with them.
func TestStrangers(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "keys"}[keys], func(t *testing.T) {
			t.Parallel()
			change := func(o *Options) {
				if keys {
					o.Keyring = load(t, keyFile(t, 1))
				}
			}
			n := start(t, "a", deps{}, change)
			for name, b := range badPackets() {
				counted(t, n, "packet: "+name, func() { sendPacket(t, n, b) })
			}
			for name, b := range badStreams() {
				counted(t, n, "stream: "+name, func() { sendStream(t, n, b, keys) })
			}
			if !n.sees() || len(n.events.all()) != 0 {
				t.Errorf("sees %v, was told %v", n.Nodes(), n.events.all())
			}
			if w := n.warned(""); w > 3 {
				t.Errorf("%d warnings", w)
			}
			waitSees(t, n)
		})
	}
}

// counted shows that what do does is counted as rejected.
func counted(t *testing.T, n *node, what string, do func()) {
	t.Helper()
	before := n.Stats().Rejected
	do()
	eventually(t, what+" is counted", func() bool { return n.Stats().Rejected > before })
}

func sendPacket(t *testing.T, n *node, b []byte) {
	t.Helper()
	c, err := net.Dial("udp", n.Self().Addr)
	must(t, err)
	defer c.Close()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// sendStream sends b, and the end of the stream if end, and reads until the other side
// has closed.
func sendStream(t *testing.T, n *node, b []byte, end bool) {
	t.Helper()
	c, err := net.Dial("tcp", n.Self().Addr)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, _ = c.Write(b) // a reset is fine, here and below
	if end {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	_, _ = io.Copy(io.Discard, c)
}

// TestManyStreams shows that the streams at a time are bounded, and that a member comes
// in when they are gone.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	path := keyFile(t, 1)
	change := func(o *Options) { o.Keyring = load(t, path) }
	a := start(t, "a", deps{}, change)
	var conns []net.Conn
	for range maxEntered + 20 {
		c, err := net.Dial("tcp", a.Self().Addr)
		must(t, err)
		conns = append(conns, c)
	}
	eventually(t, "those beyond the limit are counted", func() bool { return a.Stats().Rejected >= 20 })
	for _, c := range conns {
		check(t, c.Close())
	}
	b := start(t, "b", deps{}, func(o *Options) { change(o); seeds(a)(o) }).join(t)
	waitSees(t, a, b)
}

// TestWrongKey shows that nodes without the key, with another one or without any do not
// come in, nor let one in that has it, and that all tries are counted.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	right, wrong := keyFile(t, 1), keyFile(t, 1)
	with := func(path string) func(o *Options) {
		return func(o *Options) {
			if path != "" {
				o.Keyring = load(t, path)
			}
		}
	}
	a := start(t, "a", deps{tune: calm}, with(right))
	b := start(t, "b", deps{tune: calm}, func(o *Options) { with(right)(o); seeds(a)(o) }).join(t)
	waitSees(t, a, b)
	for name, path := range map[string]string{"other": wrong, "none": ""} {
		x := start(t, name, deps{}, func(o *Options) { with(path)(o); seeds(a, b)(o) })
		counted(t, a, name, func() { x.join(t) })
		counted(t, b, name, func() {})
		y := start(t, "y"+name, deps{}, with(path))
		z := start(t, "z"+name, deps{}, func(o *Options) { with(right)(o); seeds(y)(o) })
		counted(t, y, "a node with the right key", func() { z.join(t) })
		if !x.sees() || !y.sees() || !z.sees() {
			t.Errorf("%s: sees %v, %v, %v", name, x.Nodes(), y.Nodes(), z.Nodes())
		}
		if x.warned("cannot join") == 0 {
			eventually(t, "it is told why", func() bool { return x.warned("cannot join") > 0 })
		}
	}
	if !a.sees("b") || !b.sees("a") {
		t.Errorf("a sees %v, b sees %v", a.Nodes(), b.Nodes())
	}
}

// TestReplayedStreams shows that a stream that was recorded and is sent again is refused.
func TestReplayedStreams(t *testing.T) {
	t.Parallel()
	c, err := newChannel(load(t, keyFile(t, 1)))
	must(t, err)
	var text bytes.Buffer
	for _, again := range []bool{false, true} {
		here, there := net.Pipe()
		var caller sync.WaitGroup
		caller.Go(func() { // ends when there is closed, or within patience
			if again {
				caller.Go(func() { _, _ = io.Copy(io.Discard, here) })
				_, _ = here.Write(text.Bytes())
			} else if _, err := c.dial(recorded{here, &text}, patience); err != nil {
				t.Error(err)
			}
		})
		if _, err := c.accept(there, patience); (err != nil) != again {
			t.Errorf("again %v: %v", again, err)
		}
		if again {
			there.Close()
		}
		caller.Wait()
	}
}

// recorded is a connection whose bytes are recorded.
type recorded struct {
	net.Conn
	text *bytes.Buffer
}

func (r recorded) Write(b []byte) (int, error) {
	r.text.Write(b)
	return r.Conn.Write(b)
}
