package cluster

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/cluster/control"
)

// TestControlDead shows a node that gossip finds alive and whose control channel does not
// answer: what it holds stays visible, its breaker opens; all is well when it
// answers again.
func TestControlDead(t *testing.T) {
	calls := &cable{}
	a := start(t, "a", nil)
	b := start(t, "b", func(o *Options) { o.tuning.network = calls }, a)
	together(t, a, b)
	a.put("g/x", 1, nil)
	b.located(t, "g/x", 1)
	calls.set(true)
	eventually(t, "the breaker opens", func() bool { m, _ := b.member("a"); return m.Breaker != "closed" })
	if m, _ := b.member("a"); m.State != stateAlive || m.Feed != feedWaiting || m.LastError == "" {
		t.Errorf("%+v", m)
	}
	if len(b.Locate("g/x", nil)) != 1 {
		t.Error("what it holds is hidden")
	}
	a.put("g/y", 1, nil)
	calls.set(false)
	b.located(t, "g/y", 1)
	eventually(t, "the breaker closes", b.PeerBy("a").Callable)
}

// cable is what a node makes its calls over. It can be cut.
type cable struct {
	control.TCP
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

func (c *cable) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := c.TCP.Dial(ctx, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.cut {
		conn.Close()
		return nil, net.ErrClosed
	}
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

// set cuts all connections, and until it is called anew those that are made, or none any more.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns, c.cut = nil, cut
}
