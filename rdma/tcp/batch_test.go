package tcp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
)

// pair returns both ends of a connection, as batches: the first gathers what it writes, the second reads ahead.
func pair(t *testing.T) (from, to *batch) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	b, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return &batch{TCPConn: a.(*net.TCPConn), gathers: true}, &batch{TCPConn: b.(*net.TCPConn), reader: true}
}

// TestBatch shows that bytes come in order, whatever the sizes of writes and reads, that none is sent before send if there is
// room, and that no buffer is kept when nothing is in it.
func TestBatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	from, to := pair(t)
	want := make([]byte, 3*recordsBytes+rnd.IntN(1000))
	for i := range want {
		want[i] = byte(rnd.Uint32())
	}
	done := make(chan error, 1)
	go func() { // ends with the test's connection
		for rest := want; len(rest) > 0; {
			n := min(1+rnd.IntN(40_000), len(rest))
			if m, err := from.Write(rest[:n]); m != n || err != nil {
				done <- errors.Join(err, errors.New("short write"))
				return
			}
			rest = rest[n:]
		}
		done <- from.send()
	}()
	got := make([]byte, 0, len(want))
	sizes := rand.New(rand.NewPCG(seed, 1))
	for len(got) < len(want) {
		buf := make([]byte, 1+sizes.IntN(20_000))
		n, err := to.Read(buf)
		if err != nil || n == 0 {
			t.Fatalf("%d bytes, %v", n, err)
		}
		got = append(got, buf[:n]...)
	}
	must(t, <-done)
	if !bytes.Equal(got, want) {
		t.Error("other bytes came")
	}
	if from.out != nil || to.in != nil {
		t.Error("a buffer is kept")
	}
	if _, err := from.Write([]byte("x")); err != nil || from.sending != 1 {
		t.Errorf("%v, %d bytes gathered", err, from.sending)
	}
	if err := errors.Join(from.send(), from.send(), from.Close()); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 10)
	if n, err := to.Read(buf); n != 1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := to.Read(buf); n != 0 || err != io.EOF || to.in != nil {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
	if _, err := from.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if from.send() == nil || from.out != nil {
		t.Error("send works on a closed connection, or keeps its buffer")
	}
}
