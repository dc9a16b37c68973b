package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

const patience = 30 * time.Second

// await polls until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(time.Millisecond) // reason: polls for what has no event
	}
}

// lender lends one file by any name.
type lender struct {
	file *os.File
	size int64
	lend func(context.Context) error // called first, if not nil
}

func (l lender) Lend(ctx context.Context, _ []byte) (rdma.Loan, error) {
	if l.lend != nil {
		if err := l.lend(ctx); err != nil {
			return rdma.Loan{}, err
		}
	}
	return rdma.Loan{File: l.file, Size: l.size, Close: func() {}}, nil
}

func memfd(t *testing.T, content []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("tcp-test", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "tcp-test")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

func connect(t *testing.T, tr *Transport, addr string) *Peer {
	t.Helper()
	p, err := tr.Connect(addr)
	must(t, err)
	return p.(*Peer)
}

// getAll asks p for n items into f at off, and returns the errors of the items and of
// the whole.
func getAll(ctx context.Context, p *Peer, n int, f *os.File, off int64) ([]error, error) {
	var errs []error
	var items []*rdma.Item
	for range n {
		items = append(items, &rdma.Item{
			Name:   []byte("x"),
			Accept: func([]byte, int64) (rdma.Dest, error) { return rdma.Dest{File: f, Off: off}, nil },
			Done:   func(err error) { errs = append(errs, err) },
		})
	}
	err := p.Get(ctx, items)
	return errs, err
}

func works(t *testing.T, p *Peer) {
	t.Helper()
	if errs, err := getAll(t.Context(), p, 1, memfd(t, nil), 0); err != nil || errs[0] != nil {
		t.Errorf("get: %v, %v", err, errs)
	}
}

// rawDial connects to tr and sends b.
func rawDial(t *testing.T, tr *Transport, b []byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", tr.Addr())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	c.Write(b)
	return c
}

// TestStrangers shows that clients that do not speak the protocol are cut off and counted, and that
// other clients are served meanwhile.
func TestStrangers(t *testing.T) {
	server, client := testTLS(t)
	for _, secure := range []bool{false, true} {
		// One connection: of several a later get makes the one whose first try took too long.
		o := Options{Bind: "127.0.0.1:0", Connections: 1, DialTimeout: time.Second, StallTimeout: patience, Source: lender{memfd(t, []byte("kvfs")), 4, nil}}
		if secure {
			o.ServerTLS, o.ClientTLS = server, client
		}
		tr := open(t, o)
		p := connect(t, tr, tr.Addr())
		// From then on it has its connection. On a busy machine the first try may take longer than
		// the limit for strangers.
		await(t, "the first get", func() bool { _, err := getAll(t.Context(), p, 1, memfd(t, nil), 0); return err == nil })
		await(t, "connections that were given up to be gone", func() bool { return tr.Stats().OpenIn == 1 })
		start := tr.Stats()
		strangers := [][]byte{
			[]byte("GET / HTTP/1.1\r\n\r\n"),
			[]byte(strings.Repeat("\x16\x03\x01\xff", 1000)),
			make([]byte, 100),
			[]byte("kvfsbulx\x01\x00\x01\x00\x00\x00\x00\x00"),
			[]byte("kvfs"), // and nothing more
			nil,
			appendHello(nil, newestVersion+1, newestVersion+1),
			appendHello(nil, 0, oldestVersion-1),
			appendHello(nil, 2, 1),
		}
		for i, b := range strangers {
			c := rawDial(t, tr, b)
			works(t, p)
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("stranger %d is not cut off", i)
			}
			await(t, "the stranger to be counted", func() bool { return tr.Stats().Strangers == start.Strangers+int64(i+1) })
		}
		await(t, "strangers to be gone", func() bool { return tr.Stats().OpenIn == 1 })
		if s := tr.Stats(); s.Accepted != start.Accepted || s.ProtocolErrors != start.ProtocolErrors {
			t.Errorf("stats %+v", s)
		}
	}
}

// TestBadRequests shows that a reader that breaks the protocol is cut off.
func TestBadRequests(t *testing.T) {
	tr := open(t, Options{Bind: "127.0.0.1:0", Source: lender{memfd(t, []byte("kvfs")), 4, nil}})
	region, err := tr.Register(memfd(t, make([]byte, 100)), 100)
	must(t, err)
	defer region.Close()
	key := region.Remote().Key
	many := []byte{}
	for i := range uint32(windowItems + 1) {
		many = appendRequest(many, request{kind: kindGet, seq: i, name: []byte("x")})
	}
	oversized := appendRequest(nil, request{kind: kindGet, name: make([]byte, rdma.MaxName+1)})
	flags := appendRequest(nil, request{kind: kindGet, name: []byte("x")})
	flags[1] = 1
	for i, c := range []struct {
		what string
		b    []byte
	}{
		{"kind", []byte(strings.Repeat("\x77", 64))},
		{"oversized name", oversized},
		{"flags", flags},
		{"number", appendRequest(nil, request{kind: kindGet, seq: 5, name: []byte("x")})},
		{"confirmed too much", appendRequest(nil, request{kind: kindConfirm, confirmed: 1})},
		{"confirm with a name", appendRequest(nil, request{kind: kindConfirm, name: []byte("x")})},
		{"too many", many},
		{"read beyond the end", appendRequest(nil, request{kind: kindRead, name: key, off: 50, n: 51})},
		{"read before the beginning", appendRequest(nil, request{kind: kindRead, name: key, off: -1, n: 1})},
		{"read overflow", appendRequest(nil, request{kind: kindRead, name: key, off: 1 << 62, n: 1 << 62})},
		{"long key", appendRequest(nil, request{kind: kindRead, name: make([]byte, maxKey+1), n: 1})},
	} {
		conn := rawDial(t, tr, append(appendHello(nil, oldestVersion, newestVersion), c.b...))
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: not cut off", c.what)
		}
		await(t, c.what+" to be counted", func() bool { return tr.Stats().ProtocolErrors == int64(i+1) })
	}
	await(t, "loans to come back", func() bool { s := tr.Stats(); return s.Loans == 0 && s.OpenIn == 0 })
}

// holder is a listener whose connections get script after their first request. They are closed
// after it unless silent.
func holder(t *testing.T, script func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() { // ends when the listener is closed
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(patience))
			io.ReadFull(c, make([]byte, helloSize+requestSize+1))
			script(c)
			c.Close()
		}
	}()
	return l.Addr().String()
}

// TestBadHolders shows how a reader treats a holder that breaks the protocol, and that nothing is
// written beyond the announced bytes.
func TestBadHolders(t *testing.T) {
	hello := string(appendHello(nil, oldestVersion, newestVersion))
	frame := func(a answer) string { return string(appendAnswer(nil, a)) }
	ok := frame(answer{kind: kindAnswer, size: 10})
	silent := func(c net.Conn) { io.Copy(io.Discard, c) } // until the reader gives up
	const short = 300 * time.Millisecond                  // where it is to give up
	for _, c := range []struct {
		what, reply string
		then        func(net.Conn)
		items       int
		want        error
	}{
		{"closes", "", nil, 1, rdma.ErrUnavailable},
		{"says nothing", "", silent, 1, rdma.ErrUnavailable},
		{"speaks HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", nil, 1, rdma.ErrProtocol},
		{"newer", string(appendHello(nil, 2, 9)), nil, 1, rdma.ErrProtocol},
		{"older", string(appendHello(nil, 0, 0)), nil, 1, rdma.ErrProtocol},
		{"only greets", hello, silent, 1, rdma.ErrUnavailable},
		{"number", hello + frame(answer{kind: kindAnswer, seq: 7}), silent, 1, rdma.ErrProtocol},
		{"kind", hello + strings.Repeat("\x99", 100), silent, 1, rdma.ErrProtocol},
		{"status", hello + frame(answer{kind: kindAnswer, status: statusEnd}), silent, 1, rdma.ErrProtocol},
		{"gone with bytes", hello + frame(answer{kind: kindAnswer, status: statusGone, size: 5}), silent, 1, rdma.ErrProtocol},
		{"long header", hello + frame(answer{kind: kindAnswer, header: rdma.MaxHeader + 1}), silent, 1, rdma.ErrProtocol},
		{"negative size", hello + frame(answer{kind: kindAnswer, size: -1}), silent, 1, rdma.ErrProtocol},
		{"fewer bytes and closes", hello + ok + "kvfs", nil, 1, rdma.ErrUnavailable},
		{"fewer bytes and is silent", hello + ok + "kvfs", silent, 1, rdma.ErrUnavailable},
		{"more bytes", hello + ok + "kvfs-kvfs-kvfs-kvfs-kvfs-kvfs", silent, 2, rdma.ErrProtocol},
		{"more bytes at the end", hello + ok + "kvfs-kvfs-more", silent, 1, nil},
		{"endless", hello + ok, func(c net.Conn) {
			for b := make([]byte, 1<<20); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}, 2, rdma.ErrProtocol},
		{"waits for ever", hello, func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, frame(answer{kind: kindWait})); err != nil {
					return
				}
			}
		}, 1, context.DeadlineExceeded},
	} {
		t.Run(c.what, func(t *testing.T) {
			stall, limit := patience, patience
			switch {
			case c.want == rdma.ErrUnavailable:
				stall = short
			case c.want == context.DeadlineExceeded:
				limit = short
			}
			reader := open(t, Options{Bind: "127.0.0.1:0", StallTimeout: stall})
			p := connect(t, reader, holder(t, func(conn net.Conn) {
				io.WriteString(conn, c.reply)
				if c.then != nil {
					c.then(conn)
				}
			}))
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			f := memfd(t, nil)
			errs, err := getAll(ctx, p, c.items, f, 3)
			if !errors.Is(errs[c.items-1], c.want) {
				t.Errorf("%v (%v), want %v", err, errs, c.want)
			}
			if info, err := f.Stat(); err != nil || info.Size() > 13 {
				t.Errorf("file of %d bytes, 13 is the end of the block (%v)", info.Size(), err)
			}
		})
	}
}

// TestStalledReader shows that a reader that does not read loses its connection, and that the
// holder has its block back.
func TestStalledReader(t *testing.T) {
	const size = 64 << 20
	f := memfd(t, nil)
	must(t, f.Truncate(size))
	tr := open(t, Options{Bind: "127.0.0.1:0", StallTimeout: 200 * time.Millisecond, Source: lender{f, size, nil}})
	b := appendHello(nil, oldestVersion, newestVersion)
	rawDial(t, tr, appendRequest(b, request{kind: kindGet, name: []byte("x")}))
	await(t, "the connection to be cut", func() bool { s := tr.Stats(); return s.Broken == 1 && s.OpenIn == 0 && s.Loans == 0 })
}

// TestUnconfirmed shows that a reader that takes a block and never confirms it does not keep it for
// long.
func TestUnconfirmed(t *testing.T) {
	tr := open(t, Options{Bind: "127.0.0.1:0", StallTimeout: time.Second, Source: lender{memfd(t, make([]byte, 100)), 100, nil}})
	b := appendHello(nil, oldestVersion, newestVersion)
	c := rawDial(t, tr, appendRequest(b, request{kind: kindGet, name: []byte("x")}))
	if _, err := io.ReadFull(c, make([]byte, helloSize+answerSize+100)); err != nil {
		t.Fatal(err)
	}
	await(t, "the loan to come back", func() bool { s := tr.Stats(); return s.Loans == 0 && s.OpenIn == 0 })
}

// TestSilentCrowd shows that any number of silent connections keeps out no client that greets, and
// that the log reports them only now and then.
func TestSilentCrowd(t *testing.T) {
	server, client := testTLS(t)
	core, logs := observer.New(zap.WarnLevel)
	tr := open(t, Options{
		Bind: "127.0.0.1:0", MaxConns: 8, DialTimeout: patience, StallTimeout: patience, ServerTLS: server, ClientTLS: client,
		Source: lender{memfd(t, []byte("kvfs")), 4, nil}, Logger: zap.New(core),
	})
	const crowd = 50
	for range crowd {
		rawDial(t, tr, nil)
	}
	await(t, "those beyond the limit to be refused", func() bool { return tr.Stats().Refused == crowd-2 })
	works(t, connect(t, tr, tr.Addr()))
	for range crowd {
		rawDial(t, tr, nil)
	}
	works(t, connect(t, tr, tr.Addr()))
	await(t, "all but the latest to be gone", func() bool { return tr.Stats().OpenIn == 2+1 }) // a friend came after it
	if n := logs.FilterMessageSnippet("refused").Len(); n == 0 || n > crowd/2 {
		t.Errorf("%d lines of %d refusals in the log", n, 2*crowd)
	}
}
