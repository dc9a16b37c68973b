package gossip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// seeds returns a change of options that joins others.
func seeds(nodes ...*node) func(o *Options) {
	return func(o *Options) {
		for _, n := range nodes {
			o.Join = append(o.Join, n.Self().Addr)
		}
	}
}

// TestMembership shows join, meta, its change, a leave and a loss among three nodes.
func TestMembership(t *testing.T) {
	t.Parallel()
	d := deps{tune: unhurried}
	a := start(t, "a", d, func(o *Options) { o.Meta = []byte("ma") })
	b := start(t, "b", d, seeds(a)).join(t)
	c := start(t, "c", d, seeds(b)).join(t)
	waitSees(t, a, b, c)
	eventually(t, "b and c are told of a", func() bool {
		return b.events.has("joined a ma") && c.events.has("joined a ma")
	})
	if self := a.Self(); self.Name != "a" || string(self.Meta) != "ma" || self.Addr == "" {
		t.Errorf("self is %+v", self)
	}
	if s := b.Stats(); s.Nodes != 3 || s.Rejected != 0 || s.Conflicts != 0 {
		t.Errorf("stats %+v", s)
	}
	for _, m := range []string{"1", "2", "3"} {
		must(t, a.SetMeta([]byte(m)))
	}
	eventually(t, "b and c have the last meta", func() bool {
		return b.events.has("updated a 3") && c.events.has("updated a 3") && slices.ContainsFunc(c.Nodes(), a.is)
	})
	if err := a.SetMeta(make([]byte, MaxMeta+1)); err == nil {
		t.Error("meta that is too long was taken")
	}
	if string(a.Self().Meta) != "3" {
		t.Errorf("meta is %q after a refused change", a.Self().Meta)
	}

	must(t, errors.Join(c.Close(), c.Close()))
	if err := c.Join(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("join after close: %v", err)
	}
	eventually(t, "a and b see c fail", func() bool {
		return a.events.has("left c failed=true") && b.events.has("left c failed=true") && a.sees("b")
	})

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, b.Leave(ctx))
	if err := b.Leave(ctx); err != nil {
		t.Errorf("second leave: %v", err)
	}
	if err := b.SetMeta(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("meta after leave: %v", err)
	}
	eventually(t, "a sees b leave on purpose", func() bool { return a.events.has("left b failed=false") })
	must(t, b.Close())
	if err := b.Leave(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("leave after close: %v", err)
	}
	if !a.sees() {
		t.Errorf("a sees %v", a.Nodes())
	}
}

// TestLargestMeta shows that meta of the greatest length reaches others, encrypted too.
func TestLargestMeta(t *testing.T) {
	t.Parallel()
	path := keyFile(t, 1)
	meta := []byte(strings.Repeat("m", MaxMeta))
	name := strings.Repeat("n", maxName)
	big := start(t, name, deps{}, func(o *Options) { o.Meta, o.Keyring = meta, load(t, path) })
	b := start(t, "b", deps{}, func(o *Options) { o.Keyring = load(t, path); seeds(big)(o) }).join(t)
	c := start(t, "c", deps{}, func(o *Options) { o.Keyring = load(t, path); seeds(b)(o) }).join(t)
	waitSees(t, big, b, c)
	eventually(t, "c has the meta", func() bool {
		return slices.ContainsFunc(c.Nodes(), func(n Node) bool { return string(n.Meta) == string(meta) })
	})
}

// TestOpenRefuses shows which options are refused, and that all faults are named.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	taken := start(t, "taken", deps{}, nil)
	for _, c := range []struct {
		name   string
		change func(o *Options)
		want   []string
	}{
		{"all at once", func(o *Options) { o.Name, o.Profile, o.Meta, o.Rejoin = "", "moon", make([]byte, 513), -1 },
			[]string{"name", "must not be empty", `profile "moon"`, "meta of 513 bytes", "rejoin"}},
		{"long name", func(o *Options) { o.Name = strings.Repeat("x", 129) }, []string{"129 bytes"}},
		{"name with a slash", func(o *Options) { o.Name = "a/b" }, []string{`'/'`}},
		{"name with a line break", func(o *Options) { o.Name = "a\nb" }, []string{`'\n'`}},
		{"name that is not UTF-8", func(o *Options) { o.Name = "a\xff" }, []string{"UTF-8"}},
		{"no bind", func(o *Options) { o.Bind = "" }, []string{"bind"}},
		{"bind in use", func(o *Options) { o.Bind = taken.Self().Addr }, []string{"bind", "in use"}},
		{"bind of others", func(o *Options) { o.Bind = "192.0.2.1:0" }, []string{"bind", "192.0.2.1"}},
		{"keyring that was not loaded", func(o *Options) { o.Keyring = &Keyring{} }, []string{"keyring"}},
		{"wildcard to advertise", func(o *Options) { o.Advertise = "0.0.0.0" }, []string{"advertise", "wildcard"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tryStart(t, "x", deps{}, c.change)
			if err == nil {
				t.Fatal("was opened")
			}
			for _, want := range c.want {
				if text := err.Error(); !strings.Contains(text, want) {
					t.Errorf("%q does not tell of %q", text, want)
				}
			}
		})
	}
}

// TestJoinKeepsTrying shows that seeds that are down, malformed, unknown or this node
// itself do not disturb, that names are looked up again, and that all of a name's
// addresses are tried.
func TestJoinKeepsTrying(t *testing.T) {
	t.Parallel()
	dns := &names{}
	dns.set("peers.test")
	down := refusing(t)
	a := start(t, "a", deps{}, nil)
	_, port, _ := net.SplitHostPort(a.Self().Addr)
	var self string
	b := start(t, "b", deps{lookup: dns.lookup}, func(o *Options) {
		o.Join = []string{down, "127.0.0.1:x", "peers.test:" + port, "unknown.test"}
	})
	self = b.Self().Addr
	b.seeds = append(b.seeds, self)
	b.join(t)
	eventually(t, "the name is asked for again", func() bool { return dns.count("peers.test") > 3 })
	if !b.sees() {
		t.Fatalf("b sees %v", b.Nodes())
	}
	alone := start(t, "alone", deps{}, func(o *Options) { o.Join = []string{down} })
	alone.join(t)
	eventually(t, "a round is over", func() bool { return alone.warned(down) > 0 })
	if alone.Stats().Joined || !a.Stats().Joined || !b.Stats().Joined {
		t.Errorf("joined: %v without any other, %v with nothing to join, %v at itself", alone.Stats().Joined, a.Stats().Joined, b.Stats().Joined)
	}
	dns.set("peers.test", "127.0.0.1", "127.0.0.2", "::1")
	waitSees(t, a, b)
	for _, seed := range []string{down, "peers.test", "unknown.test", "127.0.0.1:x"} {
		if n := b.warned(seed); n != 1 {
			t.Errorf("%d warnings about %s, want 1", n, seed)
		}
	}
	if n := b.warned(self); n != 0 {
		t.Errorf("%d warnings about itself", n)
	}
	if err := b.Join(t.Context()); err != nil {
		t.Errorf("second join: %v", err)
	}
}

// TestJoinMalformed shows that Join fails only if nothing of it can be used.
func TestJoinMalformed(t *testing.T) {
	t.Parallel()
	bad := start(t, "a", deps{}, func(o *Options) { o.Join = []string{"127.0.0.1:0", "host:99999", "ho st", "[::1", ""} })
	err := bad.Join(t.Context())
	if err == nil {
		t.Fatal("joined nothing without an error")
	}
	for _, s := range []string{"port 0", "99999", "ho st", "[::1", "no host"} {
		if text := err.Error(); !strings.Contains(text, s) {
			t.Errorf("%q does not tell of %s", text, s)
		}
	}
	if err := start(t, "b", deps{}, nil).Join(t.Context()); err != nil {
		t.Errorf("nothing to join: %v", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := start(t, "c", deps{}, nil).Join(done); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

// TestNameConflict shows that a second node of a name stays out, and is counted and
// warned of once.
func TestNameConflict(t *testing.T) {
	t.Parallel()
	d := deps{tune: calm}
	a := start(t, "a", d, nil)
	b := start(t, "b", d, seeds(a)).join(t)
	waitSees(t, a, b)
	first := b.Self().Addr
	twin := start(t, "b", d, seeds(a)).join(t)
	eventually(t, "a counts the conflict", func() bool { return a.Stats().Conflicts == 1 })
	eventually(t, "the twin counts it", func() bool { return twin.Stats().Conflicts >= 1 })
	eventually(t, "a warns of it", func() bool { return a.warned("name that is taken") > 0 })
	if n := a.warned("name that is taken"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	if n := a.Nodes(); len(n) != 1 || n[0].Addr != first {
		t.Errorf("a sees %v", n)
	}
}

// TestSlowListener shows that a listener that blocks holds up nobody, that what it
// misses is told as one change, and that the memory for it is one change for each node.
func TestSlowListener(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	entered := make(chan struct{}, 1)
	r := &blocking{block: block, entered: entered}
	m := newMembers("self", nil, r, testLog(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.tell(ctx) }() // ends with ctx; waited for below
	at := func(name string, port uint16, meta string) *memberlist.Node {
		return &memberlist.Node{Name: name, Addr: net.IPv4(127, 0, 0, 1).To4(), Port: port, Meta: []byte(meta)}
	}
	m.NotifyJoin(at("a", 1, ""))
	<-entered
	for i := range uint16(1000) {
		m.NotifyJoin(at("b", i+1, ""))
		m.NotifyLeave(at("b", i+1, ""))
		m.NotifyJoin(at("c", i+1, ""))
	}
	m.NotifyUpdate(at("a", 1, "new"))
	m.NotifyLeave(at("a", 1, "new"))
	m.NotifyMsg(goodbye("a"))
	m.mu.Lock()
	if len(m.changes) != 3 || len(m.order) != 3 {
		t.Errorf("%d changes and %d names wait, want 3", len(m.changes), len(m.order))
	}
	m.mu.Unlock()
	close(block)
	eventually(t, "all is told", func() bool { return len(r.all()) == 3 })
	cancel()
	<-done
	got := r.all()
	slices.Sort(got)
	if want := []string{"joined a ", "joined c ", "left a failed=false"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

type blocking struct {
	recorder
	block   chan struct{}
	entered chan struct{}
}

func (b *blocking) Joined(n Node) {
	select {
	case b.entered <- struct{}{}:
	default:
	}
	<-b.block
	b.recorder.Joined(n)
}

// TestLostIsBounded shows that no more lost members are remembered than maxLost, the
// latest ones, and only for a time.
func TestLostIsBounded(t *testing.T) {
	t.Parallel()
	m := newMembers("self", nil, nil, testLog(t))
	for i := range maxLost + 10 {
		m.NotifyLeave(&memberlist.Node{Name: string(rune('a'+i%26)) + time.Duration(i).String(), Addr: []byte{127, 0, 0, 1}, Port: uint16(i + 1)})
	}
	if len(m.lost) != maxLost {
		t.Errorf("%d are remembered", len(m.lost))
	}
	for name, l := range m.lost {
		if l.addr.Port() <= 10 {
			t.Errorf("an early one is remembered: %v", l)
		}
		l.since = time.Now().Add(-lostLife - time.Second)
		m.lost[name] = l
	}
	if got := m.someLost(10); len(got) != 0 || len(m.lost) != 0 {
		t.Errorf("%v are tried after their time", got)
	}
}

// TestRefusesImpossibleNodes shows that news of nodes that cannot be is refused.
func TestRefusesImpossibleNodes(t *testing.T) {
	t.Parallel()
	m := newMembers("self", nil, nil, testLog(t))
	good := memberlist.Node{Name: "a", Addr: []byte{10, 0, 0, 1}, Port: 1}
	check(t, m.NotifyAlive(&good))
	for name, change := range map[string]func(n *memberlist.Node){
		"no name":    func(n *memberlist.Node) { n.Name = "" },
		"long name":  func(n *memberlist.Node) { n.Name = strings.Repeat("n", 200) },
		"escape":     func(n *memberlist.Node) { n.Name = "\x1b[2J" },
		"no address": func(n *memberlist.Node) { n.Addr = nil },
		"5 bytes":    func(n *memberlist.Node) { n.Addr = make([]byte, 5) },
		"wildcard":   func(n *memberlist.Node) { n.Addr = make([]byte, 16) },
		"multicast":  func(n *memberlist.Node) { n.Addr = netip.MustParseAddr("ff02::1").AsSlice() },
		"port 0":     func(n *memberlist.Node) { n.Port = 0 },
		"meta":       func(n *memberlist.Node) { n.Meta = make([]byte, 513) },
	} {
		n := good
		if change(&n); m.NotifyAlive(&n) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for i := range maxNodes {
		m.live[time.Duration(i).String()] = Node{}
	}
	if m.NotifyAlive(&good) == nil {
		t.Error("one too many was taken")
	}
	m.live["a"] = Node{}
	if err := m.NotifyAlive(&good); err != nil {
		t.Errorf("one that is known was refused: %v", err)
	}
}

// TestInParallel calls all methods at the same time, with news coming in meanwhile.
func TestInParallel(t *testing.T) {
	t.Parallel()
	path := keyFile(t, 1)
	change := func(o *Options) { o.Keyring = load(t, path) }
	a := start(t, "a", deps{tune: calm}, change)
	b := start(t, "b", deps{tune: calm}, func(o *Options) { change(o); seeds(a)(o) }).join(t)
	waitSees(t, a, b)
	var wg sync.WaitGroup
	for i := range 4 {
		for _, n := range []*node{a, b} {
			wg.Go(func() {
				for j := range 50 {
					check(t, n.SetMeta([]byte{byte(i), byte(j)}))
					n.Nodes()
					n.Self()
					n.Stats()
					check(t, n.Join(t.Context()))
				}
			})
		}
	}
	wg.Wait()
	eventually(t, "both have the last meta of the other", func() bool {
		return slices.ContainsFunc(a.Nodes(), b.is) && slices.ContainsFunc(b.Nodes(), a.is)
	})
	for range 2 {
		wg.Go(func() { _ = a.Leave(t.Context()) }) // either may find it closed
		wg.Go(func() {
			check(t, a.Close())
		})
		wg.Go(func() { _ = a.SetMeta(nil) }) // likewise
	}
	wg.Wait()
}

// TestLeaveTogether shows that nodes which leave at the same time do not wait for each other
// until their time is over, as each does for others that are to hear of it: none fails.
func TestLeaveTogether(t *testing.T) {
	for range 5 {
		a := start(t, "a", deps{}, nil)
		b := start(t, "b", deps{}, func(o *Options) { o.Join = []string{a.Self().Addr} })
		must(t, b.Join(t.Context()))
		eventually(t, "they know each other", func() bool { return len(a.members.nodes()) == 1 && len(b.members.nodes()) == 1 })
		var all sync.WaitGroup
		for _, n := range []*node{a, b} {
			all.Go(func() {
				check(t, n.Leave(t.Context()))
				n.Close()
			})
		}
		all.Wait()
	}
}

// TestContested shows when this node complains of another with its name: not while that
// may be its former self, then now and then, and not when the other has gone.
func TestContested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.ErrorLevel)
		m := newMembers("a", nil, nil, zap.New(core))
		own := &memberlist.Node{Name: "a", Addr: net.IPv4(192, 0, 2, 1), Port: 7946}
		other := &memberlist.Node{Name: "a", Addr: net.IPv4(192, 0, 2, 2), Port: 7946}
		meet := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(time.Second) // reason: the fake clock
				m.NotifyConflict(own, other)
			}
		}
		meet(contestGrace)
		if w := m.contestWarning(); w != "" || logs.Len() != 0 {
			t.Fatalf("at once: %q, %d errors", w, logs.Len())
		}
		meet(10 * time.Second)
		if w := m.contestWarning(); !strings.Contains(w, "192.0.2.2:7946") || logs.Len() != 1 {
			t.Fatalf("later: %q, %d errors", w, logs.Len())
		}
		meet(blameEvery)
		if logs.Len() != 2 {
			t.Errorf("%d errors, want one in %v", logs.Len(), blameEvery)
		}
		time.Sleep(contestLife + time.Second) // reason: the fake clock
		if w := m.contestWarning(); w != "" {
			t.Errorf("the other has gone: %q", w)
		}
		meet(contestGrace)
		if w := m.contestWarning(); w != "" {
			t.Errorf("it is back: %q", w)
		}
	})
}
