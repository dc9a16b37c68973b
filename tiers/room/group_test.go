package room

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// TestBlockBytes shows that the learned size is the largest of the latest commits, and that a configured one stays.
func TestBlockBytes(t *testing.T) {
	r := newRoom(t)
	g := r.Group(r.Number("free"))
	want := func(n int64) {
		t.Helper()
		if got := g.BlockBytes(); got != n {
			t.Errorf("%d bytes, want %d", got, n)
		}
	}
	want(0)
	g.Learn(20)
	want(20)
	for range recentSizes - 1 {
		g.Learn(10)
	}
	want(20)
	g.Learn(10)
	want(10)
	g = r.Find("fixed")
	g.Learn(20)
	want(8)
}

// TestCheckSize shows which sizes a group commits.
func TestCheckSize(t *testing.T) {
	r, err := New(Options{CapacityBytes: 100, Policy: "lru", Groups: map[block.GroupID]GroupOptions{
		"strict": {BlockBytes: 8, Strict: true}, "loose": {BlockBytes: 8}, "pinned": {BlockBytes: 8, Strict: true, Pinned: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		group block.GroupID
		size  int64
		ok    bool
	}{{"strict", 8, true}, {"strict", 7, false}, {"strict", 0, false}, {"loose", 7, true}, {"pinned", 7, true}} {
		err := r.Find(row.group).CheckSize(row.size)
		if (err == nil) != row.ok || err != nil && (!errors.Is(err, ErrBlockSize) || !errors.Is(err, block.ErrInvalid)) {
			t.Errorf("%+v: %v", row, err)
		}
	}
}

// TestForget shows that groups without files are forgotten but for those of the configuration, and that their
// numbers are taken again by groups that have learned nothing.
func TestForget(t *testing.T) {
	r := newRoom(t)
	names := func() (all string) {
		for g := range r.Groups() {
			if !g.configured {
				all += string(g.Name())
			}
		}
		return all
	}
	for _, name := range []block.GroupID{"a", "b", "c"} {
		n := r.Number(name)
		r.Enter(n)
		r.Group(n).Learn(5)
	}
	b := r.Number("b")
	r.Leave(b)
	r.Forget()
	r.Forget() // once is enough
	if got := names(); got != "ac" || r.Find("b") != nil {
		t.Errorf("%q are left", got)
	}
	if n := r.Number("d"); n != b || r.Group(n).BlockBytes() != 0 || r.Find("d") != r.Group(n) {
		t.Errorf("the next group has the number %d and learned %d", n, r.Group(n).BlockBytes())
	}
	if n := r.Number("e"); int(n) != 6 {
		t.Errorf("the one after it has the number %d", n)
	}
	if got := names(); got != "adce" {
		t.Errorf("%q are there", got)
	}
	for _, name := range []block.GroupID{"quota", "pinned", "fixed"} {
		if r.Find(name) == nil {
			t.Errorf("%s is forgotten", name)
		}
	}
}

// TestOrders shows that groups share an order, but those with a quota, of which something can go.
func TestOrders(t *testing.T) {
	r := newRoom(t)
	for name, own := range map[block.GroupID]bool{"free": false, "fixed": false, "pinned": false, "quota": true} {
		if got := r.orderOf(r.Group(r.Number(name))) != r.Shared(); got != own {
			t.Errorf("%s: an order of its own %v, want %v", name, got, own)
		}
	}
}

// TestAccounts shows that the accounts of groups and of all of them are in line, and that a Room that gives out
// nothing but what was charged has nothing left.
func TestAccounts(t *testing.T) {
	r := newRoom(t)
	a, b := r.Number("a"), r.Number("b")
	state := func() string {
		return fmt.Sprintf("%d %d: %d of %d, %d of %d", r.Used(), r.Pinned(), r.Group(a).Used(), r.Group(a).Files(), r.Group(b).Used(), r.Group(b).Files())
	}
	for _, row := range []struct {
		do   func()
		want string
	}{
		{func() { r.Enter(a); r.Charge(Bill{Group: r.Group(a)}, 10, false) }, "10 0: 10 of 1, 0 of 0"},
		{func() { r.Pin(10) }, "10 10: 10 of 1, 0 of 0"},
		{func() { r.Charge(Bill{Group: r.Group(a)}, 5, true) }, "15 15: 15 of 1, 0 of 0"},
		{func() { r.Move(a, b, 15) }, "15 15: 0 of 0, 15 of 1"},
		{func() { r.Pin(-15) }, "15 0: 0 of 0, 15 of 1"},
		{func() { r.Charge(Bill{Group: r.Group(b)}, -15, false); r.Leave(b) }, "0 0: 0 of 0, 0 of 0"},
	} {
		row.do()
		r.Check()
		if got := state(); got != row.want {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
}
