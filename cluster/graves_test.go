package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestExchange shows that graves go both ways and incrementally: what each has learned
// outside the feeds reaches the other, in many messages if need be, once, and
// anew to another incarnation.
func TestExchange(t *testing.T) {
	a := start(t, "a", nil)
	const n = 2*control.MaxGraves + 10
	now := uint64(time.Now().UnixNano())
	for i := range n {
		path := fmt.Sprintf("g/a%d", i)
		a.index.Bury(location.HashPath(path), now, i%2 == 0, path, int64(now))
	}
	b := start(t, "b", func(o *Options) { o.tuning.exchange = time.Hour }, a)
	for i := range n {
		path := fmt.Sprintf("g/b%d", i)
		b.index.Bury(location.HashPath(path), now, false, path, int64(now))
	}
	together(t, a, b)
	eventually(t, "b has a's", func() bool { return b.buriedSeq(fmt.Sprintf("g/a%d", n-1)) == now })
	eventually(t, "a has b's", func() bool { return a.buriedSeq(fmt.Sprintf("g/b%d", n-1)) == now })
	eventually(t, "a's marks have come to the end", func() bool {
		sent, done := a.Stats().GravesSent+b.Stats().GravesSent, a.Stats().Exchanges
		eventually(t, "two more exchanges", func() bool { return a.Stats().Exchanges >= done+2 })
		// Of the latest time of learning there may be a few, which are told again.
		return a.Stats().GravesSent+b.Stats().GravesSent-sent < 100
	})

	b.Node.Close()
	again := start(t, "b", nil, a)
	together(t, a, again)
	for _, path := range []string{"g/a0", "g/b0", fmt.Sprintf("g/a%d", n-1), fmt.Sprintf("g/b%d", n-1)} {
		eventually(t, "another b has "+path, func() bool { return again.buriedSeq(path) == now })
	}
}

// TestExchangeOnReturn shows that two nodes that meet again tell each other what graves
// they have learned meanwhile, although their feeds go on where they were.
func TestExchangeOnReturn(t *testing.T) {
	seldom := func(o *Options) { o.tuning.exchange = time.Hour }
	a := start(t, "a", seldom)
	b := start(t, "b", func(o *Options) { seldom(o); o.ControlBind, o.Insecure = "0.0.0.0:0", true }, a)
	together(t, a, b)
	for _, n := range []*testNode{a, b} {
		eventually(t, "they have met", func() bool { return n.Stats().Exchanges == 1 })
		// As learned from a third.
		path := "g/" + n.o.Gossip.Name
		n.index.Bury(location.HashPath(path), 9, false, path, time.Now().UnixNano())
	}
	_, port, _ := net.SplitHostPort(b.self.Control)
	m := b.self
	m.Control = net.JoinHostPort("127.0.0.1", port)
	encoded, err := m.Encode()
	must(t, err)
	if err := b.gossip.SetMeta(encoded); err != nil { // a meets b anew, at another address
		t.Fatal(err)
	}
	eventually(t, "a knows b's", func() bool { return a.buriedSeq("g/b") == 9 })
	eventually(t, "b knows a's", func() bool { return b.buriedSeq("g/a") == 9 })
	if m, _ := a.member("b"); m.Snapshots != 1 {
		t.Errorf("%d snapshots", m.Snapshots)
	}
}

// TestObserve shows that the backend hears of versions that other nodes made, but not of one that no
// clock has.
func TestObserve(t *testing.T) {
	a := start(t, "a", nil)
	a.graves.Taken("g/near", false, 5)
	a.observe(block.MaxSeq+1, "b")
	if a.observedSeq() != 5 || a.Stats().FarVersion != 1 {
		t.Errorf("observed %d, %d too far", a.observedSeq(), a.Stats().FarVersion)
	}
	a.graves.Bad(true)
	a.graves.Bad(false)
	if s := a.Stats(); s.FarVersion != 2 || s.Malformed != 1 || s.GravesTaken != 1 {
		t.Errorf("%+v", s)
	}
}

// TestGravesKept shows that what a node knows of removals is known to its next process, also if
// it ends without Close: that is told of them, and so are peers that were away.
func TestGravesKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "graves")
	keep := func(o *Options) { o.GraveFile = file }
	a := start(t, "a", keep)
	const removed = 50
	seq := uint64(time.Now().UnixNano())
	for i := range removed {
		a.put(fmt.Sprintf("g/%d", i), seq, pattern(i, 10))
		a.remove(fmt.Sprintf("g/%d", i), seq+1)
	}
	var killed []byte // the file as somebody finds it who comes after a kill
	eventually(t, "all are in the file", func() bool {
		killed, _ = os.ReadFile(file)
		return strings.Contains(string(killed), fmt.Sprintf("g/%d", removed-1))
	})
	a.Node.Close()
	closed, err := os.ReadFile(file)
	must(t, err)
	for what, content := range map[string][]byte{
		"killed": killed, "closed": closed, "killed while it wrote": append(closed[:len(closed):len(closed)], 40, 0, 0, 0, 1, 2),
	} {
		t.Run(what, func(t *testing.T) {
			must(t, os.WriteFile(file, content, 0o600))
			c := start(t, "c", nil) // has all of it still
			for i := range removed {
				c.put(fmt.Sprintf("g/%d", i), seq, pattern(i, 10))
			}
			next := start(t, "a", keep, c)
			if got := next.index.Stats().Graves; got != removed {
				t.Errorf("%d graves, want %d", got, removed)
			}
			if next.buriedSeq("g/7") != seq+1 || next.observedSeq() != seq+1 {
				t.Errorf("the backend was told of %d, and of version %d, want %d", next.buriedSeq("g/7"), next.observedSeq(), seq+1)
			}
			eventually(t, "the other one drops them", func() bool {
				return c.buriedSeq("g/0") == seq+1 && c.buriedSeq(fmt.Sprintf("g/%d", removed-1)) == seq+1
			})
			next.remove("g/new", seq+2)
			next.Node.Close()
			again := start(t, "a", keep)
			if again.index.Buried(location.HashPath("g/new")) != seq+2 {
				t.Error("what came after is not in the file")
			}
			again.Node.Close()
			c.Node.Close()
		})
	}
	must(t, os.WriteFile(file, []byte("something else\n"), 0o600))
	other := start(t, "a", keep)
	if other.logs.FilterMessageSnippet("file of removals cannot be used").Len() != 1 {
		t.Error("no warning of a file that is none of graves")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "something else\n" {
		t.Errorf("it was written to: %q, %v", b, err)
	}
}
