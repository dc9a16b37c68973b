package cluster

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/cluster/location"
)

// TestControlDead shows a node that gossip finds alive and whose control channel does not
// answer: what it holds stays visible, its breaker opens; all is well when it
// answers again.
func TestControlDead(t *testing.T) {
	a := prepare(t, "a", nil)
	p := newProxy(t, a.self.Control)
	a.self.Control = p.l.Addr().String()
	if err := a.announce(1, 1); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(a.fakeBackend); err != nil {
		t.Fatal(err)
	}
	b := start(t, "b", nil, a)
	together(t, a, b)
	a.put("g/x", 1, nil)
	b.located(t, "g/x", 1)
	p.setDead(true)
	eventually(t, "the breaker opens", func() bool { m, _ := b.member("a"); return m.Breaker != "closed" })
	if m, _ := b.member("a"); m.State != stateAlive || m.Feed != feedWaiting || m.LastError == "" {
		t.Errorf("%+v", m)
	}
	if len(b.Locate("g/x", nil)) != 1 {
		t.Error("what it holds is hidden")
	}
	a.put("g/y", 1, nil)
	p.setDead(false)
	b.located(t, "g/y", 1)
	eventually(t, "the breaker closes", b.PeerBy("a").Callable)
}

// proxy forwards connections until it is told to cut them.
type proxy struct {
	l  net.Listener
	to string

	mu    sync.Mutex
	conns []net.Conn
	dead  bool
	wg    sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to}
	p.wg.Go(p.run) // ends when the listener is closed
	t.Cleanup(func() {
		l.Close()
		p.setDead(true) // one that is being made, too
		p.wg.Wait()
	})
	return p
}

func (p *proxy) run() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("tcp", p.to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, c, d)
		dead := p.dead
		p.mu.Unlock()
		if dead {
			p.cut()
			continue
		}
		for _, way := range [][2]net.Conn{{c, d}, {d, c}} {
			p.wg.Go(func() { // ends with either connection
				io.Copy(way[0], way[1])
				way[0].Close()
				way[1].Close()
			})
		}
	}
}

// cut closes the connections that there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// setDead has it cut all connections, now and from now on, or not.
func (p *proxy) setDead(dead bool) {
	p.mu.Lock()
	p.dead = dead
	p.mu.Unlock()
	if dead {
		p.cut()
	}
}

// oneByOne gives slots without end.
type oneByOne struct{ next location.Slot }

func (s *oneByOne) TakeSlot() (location.Slot, bool) { s.next++; return s.next, true }
func (s *oneByOne) GiveSlot(location.Slot)          {}
