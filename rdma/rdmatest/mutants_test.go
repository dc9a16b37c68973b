package rdmatest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

// mutant is a correct transport with one fault. Each field that is not nil stands between the suite
// and the real call.
type mutant struct {
	patience time.Duration // of the suite
	attempts int           // likewise
	givesUp  bool          // of the harness
	get      func(ctx context.Context, g rdma.Getter, items []*rdma.Item) error
	item     func(*rdma.Item) *rdma.Item
	read     func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error
	loan     func(rdma.Loan) rdma.Loan
	lend     func(ctx context.Context) context.Context
	register func(t rdma.Transport, f *os.File, size int64) (rdma.Region, error)
	region   func(rdma.Region) rdma.Region
	shut     func(t rdma.Transport) error
	connect  func(t rdma.Transport, addr string) (rdma.Peer, error)
	close    func(p rdma.Peer) error
	caps     func(rdma.Caps) rdma.Caps
}

// harness opens transports of its own network with the fault.
func (m mutant) harness(testing.TB) *rdmatest.Harness {
	n := inproc.NewNetwork()
	var nodes atomic.Int64
	return &rdmatest.Harness{
		Patience: m.patience,
		Attempts: m.attempts,
		Open: func(tb testing.TB, s rdma.Source) rdma.Transport {
			if s != nil {
				s = source{s, m}
			}
			t, err := n.Transport(fmt.Sprint("node", nodes.Add(1)), s)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { t.Close() }) // whatever the mutant does in its own Close
			return transport{t, m}
		},
		Cut: func(a, b rdma.Transport) (heal func()) {
			n.Cut(a.Addr(), b.Addr())
			return func() { n.Heal(a.Addr(), b.Addr()) }
		},
		Stall:   func(a, b rdma.Transport) (resume func()) { return n.Stall(a.Addr(), b.Addr()) },
		GivesUp: m.givesUp,
	}
}

type source struct {
	rdma.Source
	m mutant
}

func (s source) Lend(ctx context.Context, name []byte) (rdma.Loan, error) {
	if s.m.lend != nil {
		ctx = s.m.lend(ctx)
	}
	l, err := s.Source.Lend(ctx, name)
	if err == nil && s.m.loan != nil {
		l = s.m.loan(l)
	}
	return l, err
}

type transport struct {
	rdma.Transport
	m mutant
}

func (t transport) Caps() rdma.Caps {
	if t.m.caps != nil {
		return t.m.caps(t.Transport.Caps())
	}
	return t.Transport.Caps()
}

func (t transport) Connect(addr string) (rdma.Peer, error) {
	connect := t.m.connect
	if connect == nil {
		connect = func(t rdma.Transport, addr string) (rdma.Peer, error) { return t.Connect(addr) }
	}
	p, err := connect(t.Transport, addr)
	if err != nil {
		return nil, err
	}
	return peer{p, t.m}, nil
}

type peer struct {
	rdma.Peer
	m mutant
}

func (p peer) Close() error {
	if p.m.close != nil {
		return p.m.close(p.Peer)
	}
	return p.Peer.Close()
}

func (p peer) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	if p.m.read != nil {
		return p.m.read(ctx, p.Peer, r, off, n, dst)
	}
	return p.Peer.Read(ctx, r, off, n, dst)
}

func (p peer) Get(ctx context.Context, items []*rdma.Item) error {
	if p.m.item != nil {
		var changed []*rdma.Item
		for _, item := range items {
			changed = append(changed, p.m.item(item))
		}
		items = changed
	}
	if p.m.get != nil {
		return p.m.get(ctx, p.Peer.(rdma.Getter), items)
	}
	return p.Peer.(rdma.Getter).Get(ctx, items)
}

func (t transport) Register(f *os.File, size int64) (rdma.Region, error) {
	register := t.m.register
	if register == nil {
		register = rdma.Transport.Register
	}
	r, err := register(t.Transport, f, size)
	if err == nil && t.m.region != nil {
		r = t.m.region(r)
	}
	return r, err
}

func (t transport) Close() error {
	if t.m.shut != nil {
		return t.m.shut(t.Transport)
	}
	return t.Transport.Close()
}

// noClose is a region that stays open.
type noClose struct{ rdma.Region }

func (noClose) Close() error { return nil }

// withDest changes the destination of an item.
func withDest(change func(d rdma.Dest, size int64) rdma.Dest) func(*rdma.Item) *rdma.Item {
	return func(item *rdma.Item) *rdma.Item {
		c := *item
		c.Accept = func(h []byte, size int64) (rdma.Dest, error) {
			d, err := item.Accept(h, size)
			if err == nil {
				d = change(d, size)
			}
			return d, err
		}
		return &c
	}
}

// withDone changes how an item learns of its end.
func withDone(change func(done func(error), err error)) func(*rdma.Item) *rdma.Item {
	return func(item *rdma.Item) *rdma.Item {
		c := *item
		c.Done = func(err error) { change(item.Done, err) }
		return &c
	}
}

// lateWriter writes to the destination of a broken item, from the end on, after the suite has begun
// to put its marks there. It keeps the loan until then.
func lateWriter() mutant {
	written := make(chan struct{})
	var once sync.Once
	return mutant{
		item: func(item *rdma.Item) *rdma.Item {
			c := *item
			var dst rdma.Dest
			var size int64
			c.Accept = func(h []byte, n int64) (d rdma.Dest, err error) {
				dst, err = item.Accept(h, n)
				size = n
				return dst, err
			}
			c.Done = func(err error) {
				item.Done(err)
				if err == nil || dst.File == nil {
					return
				}
				go func() { // ends when the mark is there
					b := make([]byte, 1)
					for b[0] == 0 {
						if _, err := dst.File.ReadAt(b, size-1); errors.Is(err, os.ErrClosed) {
							return
						}
						runtime.Gosched()
					}
					dst.File.WriteAt(make([]byte, 4096), size-4096)
					once.Do(func() { close(written) })
				}()
			}
			return &c
		},
		loan: func(l rdma.Loan) rdma.Loan {
			if l.Size < 64<<20 {
				return l
			}
			back := l.Close
			l.Close = func() {
				go func() { // ends when the other one does
					<-written
					back()
				}()
			}
			return l
		},
	}
}

// TestMutants shows that the suite finds each fault.
func TestMutants(t *testing.T) {
	swap := func(from, to error) func(*rdma.Item) *rdma.Item {
		return withDone(func(done func(error), err error) {
			if errors.Is(err, from) {
				err = to
			}
			done(err)
		})
	}
	find(t, []planted{
		{"done twice", "get sizes", mutant{item: withDone(func(done func(error), err error) { done(err); done(err) })}},
		{"never done", "get order", mutant{item: withDone(func(done func(error), err error) {
			if !errors.Is(err, rdma.ErrBusy) {
				done(err)
			}
		})}},
		{"offset ignored", "get sizes", mutant{item: withDest(func(d rdma.Dest, _ int64) rdma.Dest { d.Off = 0; return d })}},
		{"gone is fine", "get order", mutant{item: swap(rdma.ErrGone, nil)}},
		{"dead holder has nothing", "holder absent", mutant{item: swap(rdma.ErrUnavailable, rdma.ErrGone)}},
		{"result of get dropped", "holder absent", mutant{get: func(ctx context.Context, g rdma.Getter, items []*rdma.Item) error {
			g.Get(ctx, items)
			return nil
		}}},
		{"cancel ignored", "cancel during transfer", mutant{get: func(ctx context.Context, g rdma.Getter, items []*rdma.Item) error {
			return g.Get(context.WithoutCancel(ctx), items)
		}}},
		{"late write", "cancel during transfer", lateWriter()},
		{"header lost", "get headers", mutant{loan: func(l rdma.Loan) rdma.Loan { l.Header = nil; return l }}},
		{"loan kept", "loans", mutant{loan: func(l rdma.Loan) rdma.Loan { l.Close = func() {}; return l }}},
		{"read ignores the offset", "read ranges", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			return p.Read(ctx, r, 0, n, dst)
		}}},
		{"region stays open", "read gone", mutant{region: func(r rdma.Region) rdma.Region { return noClose{r} }}},
		{"peer stays open", "peer closed", mutant{close: func(rdma.Peer) error { return nil }}},
		{"connect after close", "transport closed", mutant{connect: func(t rdma.Transport, addr string) (rdma.Peer, error) {
			p, err := t.Connect(addr)
			if errors.Is(err, rdma.ErrClosed) {
				return nil, errors.New("something else")
			}
			return p, err
		}}},
		{"a byte written behind", "read sizes", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			err := p.Read(ctx, r, off, n, dst)
			if err == nil {
				dst.File.WriteAt([]byte{1}, dst.Off+n)
			}
			return err
		}}},
		{"stalled read not cancelled", "read stalled", mutant{read: func(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
			return p.Read(context.WithoutCancel(ctx), r, off, n, dst)
		}}},
		{"closed region goes on", "read region closed during", mutant{region: func(r rdma.Region) rdma.Region { return noClose{r} }}},
		{"transport goes on reading", "read transport closed during", mutant{shut: func(rdma.Transport) error { return nil }}},
		{"caps without get", "caps", mutant{caps: func(c rdma.Caps) rdma.Caps { c.Get = false; return c }}},
	})
}

// planted is a fault and the check that has to find it.
type planted struct {
	fault, check string
	m            mutant
}

// findTries is how often a check is run: some faults show only if two things meet.
const findTries = 10

// find shows that the checks find the faults, and find nothing without them.
func find(t *testing.T, faults []planted) {
	sound := map[string]bool{} // checks that pass without a fault
	for _, c := range faults {
		t.Run(c.fault, func(t *testing.T) {
			if !sound[c.check] && rdmatest.Check(t, mutant{}.harness, c.check) {
				t.Errorf("%q fails without the fault", c.check)
			}
			sound[c.check] = true
			c.m.patience = 2 * time.Second // some faults show only because nothing happens
			c.m.attempts = 5               // or because no read is ever caught
			for range findTries {
				if rdmatest.Check(t, c.m.harness, c.check) {
					return
				}
			}
			t.Errorf("%q does not find it in %d runs", c.check, findTries)
		})
	}
}
