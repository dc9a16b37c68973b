package tcp

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

func TestOptions(t *testing.T) {
	server, _ := testTLS(t)
	for what, o := range map[string]Options{
		"congestion":   {Bind: "127.0.0.1:0", Congestion: "no-such-thing"},
		"bind":         {Bind: "127.0.0.1"},
		"one-way TLS":  {Bind: "127.0.0.1:0", ServerTLS: server},
		"connections":  {Bind: "127.0.0.1:0", Connections: -1},
		"stall":        {Bind: "127.0.0.1:0", StallTimeout: -time.Second},
		"max accepted": {Bind: "127.0.0.1:0", MaxConns: -1},
		"rate":         {Bind: "127.0.0.1:0", Rate: -1},
	} {
		if tr, err := Open(o); err == nil {
			tr.Close()
			t.Errorf("%s: no error", what)
		}
	}
	tr := open(t, Options{Bind: "127.0.0.1:0", Advertise: "node.example:7"})
	if tr.Addr() != "node.example:7" {
		t.Errorf("address %s", tr.Addr())
	}
	for _, addr := range []string{"", "host", ":1", "host:", "::1"} {
		if _, err := tr.Connect(addr); err == nil || errors.Is(err, rdma.ErrClosed) {
			t.Errorf("connect to %q: %v", addr, err)
		}
	}
}

// congestionOf returns the congestion control of a socket.
func congestionOf(t *testing.T, c syscall.RawConn) (name string) {
	t.Helper()
	var err error
	ctl := c.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	must(t, errors.Join(ctl, err))
	return name
}

// TestCongestion shows that both ends of a connection have the requested congestion control.
func TestCongestion(t *testing.T) {
	for _, name := range []string{"reno", "cubic"} {
		if err := checkCongestion(name); err != nil {
			t.Logf("not on this host: %v", err)
			continue
		}
		o := Options{Bind: "127.0.0.1:0", Congestion: name, Source: lender{memfd(t, []byte("kvfs")), 4, nil}}
		holder, reader := open(t, o), open(t, o)
		p := connect(t, reader, holder.Addr())
		works(t, p)
		if got := congestionOf(t, onlyConn(t, p).raw); got != name {
			t.Errorf("dialled connection: %s, want %s", got, name)
		}
		holder.mu.Lock()
		for s := range holder.mu.serving {
			if got := congestionOf(t, s.raw); got != name {
				t.Errorf("accepted connection: %s, want %s", got, name)
			}
		}
		holder.mu.Unlock()
	}
}

// onlyConn returns the only connection of a peer. It is idle, except while it confirms the bytes
// that came.
func onlyConn(t *testing.T, p *Peer) *conn {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := slices.AppendSeq(slices.Clone(p.mu.idle), maps.Keys(p.mu.busy))
	if len(conns) != 1 {
		t.Fatalf("%d connections", len(conns))
	}
	return conns[0]
}

// TestMaxConns shows that connections beyond the limit are refused, and accepted
// again when others have gone.
func TestMaxConns(t *testing.T) {
	source := lender{memfd(t, []byte("kvfs")), 4, nil}
	holder := open(t, Options{Bind: "127.0.0.1:0", MaxConns: 2, Source: source})
	reader := open(t, Options{Bind: "127.0.0.1:0"})
	a, b, c := connect(t, reader, holder.Addr()), connect(t, reader, holder.Addr()), connect(t, reader, holder.Addr())
	works(t, a)
	works(t, b)
	if _, err := getAll(t.Context(), c, 1, memfd(t, nil), 0); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("get over a third connection: %v", err)
	}
	await(t, "the third to be gone", func() bool { s := holder.Stats(); return s.Refused > 0 && s.OpenIn == 2 })
	a.Close()
	await(t, "a place", func() bool { return holder.Stats().OpenIn == 1 })
	works(t, c)
}

// TestConnections shows that a peer has no more connections than allowed, that it reuses them, and
// that idle ones are closed.
func TestConnections(t *testing.T) {
	gate := make(chan struct{})
	source := lender{memfd(t, []byte("kvfs")), 4, func(context.Context) error { <-gate; return nil }}
	holder := open(t, Options{Bind: "127.0.0.1:0", Source: source, StallTimeout: patience})
	reader := open(t, Options{Bind: "127.0.0.1:0", Connections: 3, IdleTimeout: 100 * time.Millisecond, StallTimeout: patience})
	p := connect(t, reader, holder.Addr())
	done := make(chan error)
	const calls = 10
	for range calls {
		f := memfd(t, nil)
		go func() { // ends when the gate is open
			_, err := getAll(context.Background(), p, 1, f, 0)
			done <- err
		}()
	}
	await(t, "calls to queue", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.mu.waiting) == calls-3 && len(p.mu.busy) == 3
	})
	close(gate)
	for range calls {
		if err := <-done; err != nil {
			t.Errorf("get: %v", err)
		}
	}
	if s := reader.Stats(); s.Dialled != 3 || s.ItemsIn != calls || s.BytesIn != 4*calls {
		t.Errorf("stats %+v", s)
	}
	await(t, "idle connections to be closed", func() bool { return reader.Stats().OpenOut == 0 && holder.Stats().OpenIn == 0 })
	if s := holder.Stats(); s.ItemsOut != calls || s.BytesOut != 4*calls || s.Loans != 0 || s.Broken != 0 || s.ProtocolErrors != 0 {
		t.Errorf("stats of the holder %+v", s)
	}
	works(t, p)
}

// TestQueuedCallCancelled shows that a call that waits for a connection can be given
// up, and that others still get theirs.
func TestQueuedCallCancelled(t *testing.T) {
	gate := make(chan struct{})
	source := lender{memfd(t, []byte("kvfs")), 4, func(context.Context) error { <-gate; return nil }}
	holder := open(t, Options{Bind: "127.0.0.1:0", Source: source})
	p := connect(t, open(t, Options{Bind: "127.0.0.1:0", Connections: 1}), holder.Addr())
	first := make(chan error, 1)
	f := memfd(t, nil)
	go func() { // ends when the gate is open
		_, err := getAll(context.Background(), p, 1, f, 0)
		first <- err
	}()
	await(t, "the first call", func() bool { return holder.Stats().OpenIn == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := getAll(ctx, p, 1, memfd(t, nil), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("queued call: %v", err)
	}
	close(gate)
	if err := <-first; err != nil {
		t.Errorf("first call: %v", err)
	}
	works(t, p)
}

// TestRestart shows that a holder that comes back at its address is reached although
// the connections to it have died unnoticed.
func TestRestart(t *testing.T) {
	source := lender{memfd(t, []byte("kvfs")), 4, nil}
	holder := open(t, Options{Bind: ownHost() + ":0", Source: source})
	p := connect(t, open(t, Options{Bind: "127.0.0.1:0"}), holder.Addr())
	for range 5 {
		works(t, p)
		addr := holder.Addr()
		must(t, holder.Close())
		holder = open(t, Options{Bind: addr, Source: source})
	}
	works(t, p)
}

// TestSlowLend shows that a source may take longer than the stall timeouts, with and without TLS.
// The reader's timeout is many times the holder's, which sets how often the holder reports that it
// is alive: a busy machine has the time between.
func TestSlowLend(t *testing.T) {
	const holderStall, readerStall, slow = time.Second, 4 * time.Second, 6 * time.Second
	server, client := testTLS(t)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			source := lender{memfd(t, []byte("kvfs")), 4, func(ctx context.Context) error {
				if calls.Add(1) == 1 {
					return nil // the slow one comes while this one is held
				}
				select {
				case <-time.After(slow):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			o := Options{Bind: "127.0.0.1:0", StallTimeout: holderStall, Source: source}
			if secure {
				o.ServerTLS, o.ClientTLS = server, client
			}
			holder := open(t, o)
			o.StallTimeout = readerStall
			errs, err := getAll(t.Context(), connect(t, open(t, o), holder.Addr()), 2, memfd(t, nil), 0)
			if err != nil || errs[0] != nil || errs[1] != nil {
				t.Errorf("get from a slow source: %v %v", err, errs)
			}
		})
	}
}

// TestSetSource shows that a source may come late.
func TestSetSource(t *testing.T) {
	tr := open(t, Options{Bind: "127.0.0.1:0"})
	p := connect(t, tr, tr.Addr())
	if errs, err := getAll(t.Context(), p, 1, memfd(t, nil), 0); err != nil || !errors.Is(errs[0], rdma.ErrBusy) {
		t.Errorf("get without a source: %v %v", err, errs)
	}
	tr.SetSource(lender{memfd(t, []byte("kvfs")), 4, nil})
	works(t, p)
	tr.SetSource(nil)
	if errs, err := getAll(t.Context(), p, 1, memfd(t, nil), 0); err != nil || !errors.Is(errs[0], rdma.ErrBusy) {
		t.Errorf("get without a source: %v %v", err, errs)
	}
}

// FuzzRequest shows that any bytes either decode or give an error, and that decoded requests encode
// to the same bytes.
func FuzzRequest(f *testing.F) {
	f.Add(appendRequest(nil, request{kind: kindGet, seq: 1, confirmed: 2, name: []byte("name")}))
	f.Add(appendRequest(nil, request{kind: kindRead, name: []byte("key"), off: 3, n: 4}))
	f.Add(appendRequest(nil, request{kind: kindConfirm, confirmed: 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < requestSize {
			return
		}
		r, rest, err := parseRequest(b[:requestSize])
		if err != nil {
			return
		}
		if rest > rdma.MaxName+rangeSize {
			t.Fatalf("claims %d bytes", rest)
		}
		if len(b) < requestSize+rest || r.parseRest(b[requestSize:requestSize+rest]) != nil {
			return
		}
		if again := appendRequest(nil, r); !bytes.Equal(again, b[:requestSize+rest]) {
			t.Errorf("%x encoded as %x", b, again)
		}
	})
}

// FuzzAnswer is FuzzRequest for answers and greetings.
func FuzzAnswer(f *testing.F) {
	f.Add(appendAnswer(nil, answer{kind: kindAnswer, header: 5, seq: 0, size: 77}))
	f.Add(appendAnswer(nil, answer{kind: kindWait}))
	f.Add(appendHello(nil, oldestVersion, newestVersion))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < answerSize {
			return
		}
		if a, err := parseAnswer(b, 0); err == nil {
			if again := appendAnswer(nil, a); !bytes.Equal(again, b[:answerSize]) {
				t.Errorf("%x encoded as %x", b, again)
			}
		}
		if v, err := parseHello(b); err == nil && (v < oldestVersion || v > newestVersion) {
			t.Errorf("agreed on version %d", v)
		}
	})
}
