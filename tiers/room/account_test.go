package room

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/policy"
)

// TestOfCgroup shows whose account pays for what a process in a control group makes.
func TestOfCgroup(t *testing.T) {
	r := newRoom(t)
	open := func(at string) uint16 {
		n, fresh, err := r.OpenAccount(Holder{Cgroup: at}, 10, false)
		if err != nil || !fresh {
			t.Fatalf("%s: fresh %v, %v", at, fresh, err)
		}
		return n
	}
	if n := r.OfCgroup("/a/b"); n != 0 {
		t.Errorf("account %d before there is one", n)
	}
	a, ab := open("/a"), open("/a/b")
	for at, want := range map[string]uint16{"": 0, "/": 0, "/b": 0, "/ab": 0, "/a": a, "/a/c/d": a, "/a/b": ab, "/a/b/c": ab, "/a/bc": a, "a": 0} {
		if got := r.OfCgroup(at); got != want {
			t.Errorf("%q: account %d, want %d", at, got, want)
		}
	}
	top := open("/")
	for at, want := range map[string]uint16{"": 0, "/": top, "/b": top, "/a": a} {
		if got := r.OfCgroup(at); got != want {
			t.Errorf("with one for all: %q: account %d, want %d", at, got, want)
		}
	}
	if r.OfUser(0) != 0 {
		t.Error("user 0 has the account of a control group")
	}
}

// TestBill shows that a file is charged to all who pay for it, that the quota of each is enforced, and that each gives
// up its own blocks.
func TestBill(t *testing.T) {
	r := newRoom(t)
	user, _, err := r.OpenAccount(Holder{UID: 7}, 30, false)
	if err != nil {
		t.Fatal(err)
	}
	cgroup, _, err := r.OpenAccount(Holder{Cgroup: "/c"}, 20, false)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Bill(r.Number("quota"), [2]uint16{user, cgroup})
	r.Charge(b, 15, false)
	r.Charge(r.Bill(r.Number("free"), [2]uint16{user, 0}), 10, false)
	state := func() string {
		return fmt.Sprintf("%d: group %d, user %d, cgroup %d", r.Used(), b.Group.Used(), r.Account(user).Used(), r.Account(cgroup).Used())
	}
	if got, want := state(), "25: group 15, user 25, cgroup 15"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, row := range []struct {
		n     int64
		over  bool
		calls string
	}{{5, false, ""}, {6, true, " user:1 cgroup:1"}, {20, true, " user:15 cgroup:15"}, {21, true, " user:16"}, {26, true, " quota:1 user:21"}} {
		if got := b.Over(row.n); got != row.over {
			t.Errorf("%d more: over %v", row.n, got)
		}
		calls := ""
		r.MakeInQuotas(b, row.n, Victims{Evict: func(order policy.Policy, need int64, _ bool) (int64, int64) {
			name := map[policy.Policy]string{b.Group.order: "quota", r.accounts[user].order: "user", r.accounts[cgroup].order: "cgroup"}[order]
			calls += fmt.Sprintf(" %s:%d", name, need)
			return 0, 0
		}})
		if calls != row.calls {
			t.Errorf("%d more: evicted %q, want %q", row.n, calls, row.calls)
		}
	}
	if err := r.Hopeless(b, 0, 21); !errors.Is(err, block.ErrQuota) {
		t.Errorf("a file larger than a quota: %v", err)
	}
	if err := r.Refusal(b, 0, 6, time.Second); err != nil {
		t.Errorf("a file that may wait: %v", err)
	}
	if err := r.Refusal(b, 0, 6, 0); !errors.Is(err, block.ErrQuota) {
		t.Errorf("a file that may not wait: %v", err)
	}
	r.Pass(user, 0, 15)
	if got, want := state(), "25: group 15, user 10, cgroup 15"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestPins shows that what users pin counts for all who pay, and that each has a quota of it, apart from the other.
func TestPins(t *testing.T) {
	r := newRoom(t)
	user, fresh, err := r.OpenAccount(Holder{UID: 7}, 1000, true) // more than the capacity: lower tiers may have it
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	b := r.Bill(r.Number("quota"), [2]uint16{user, 0})
	b.AddPins(15)
	b.Group.SetPinQuota(20)
	state := func() string {
		group, groupQuota := b.Group.Pins()
		mine, quota := r.Account(user).Pins()
		return fmt.Sprintf("group %d of %d, user %d of %d", group, groupQuota, mine, quota)
	}
	if got, want := state(), "group 15 of 20, user 15 of 1000"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if b.OverPins(5) || !b.OverPins(6) || b.Over(6) {
		t.Error("of the group, 20 may be pinned, and more may be used")
	}
	if err := r.Hopeless(b, 0, 6); err != nil {
		t.Errorf("a file that is not pinned: %v", err)
	}
	b.Pinned = true
	if err := r.Hopeless(b, 0, 6); !errors.Is(err, block.ErrQuota) || !b.Over(6) || b.Over(5) || b.Over(0) {
		t.Errorf("a pinned file that grows: %v, over %v %v %v", err, b.Over(6), b.Over(5), b.Over(0))
	}
	b.Group.SetPinQuota(10)
	if b.Over(0) || !b.Over(1) || !b.OverPins(0) {
		t.Error("above a quota, what is there stays")
	}
	r.OpenAccount(Holder{UID: 7}, 1, true)
	if b.Group.SetPinQuota(0); !b.OverPins(1) {
		t.Error("the user may pin more")
	}
	if _, fresh, err := r.OpenAccount(Holder{UID: 7}, 30, false); fresh || err != nil {
		t.Error(fresh, err)
	}
	if n, had := r.EndQuota(Holder{UID: 7}, false); n != 0 || !had || r.OfUser(7) != user {
		t.Error("the account ends with one of its quotas", n, had)
	}
	if n, had := r.EndQuota(Holder{UID: 7}, false); n != 0 || had {
		t.Error("there is no such quota any more", n, had)
	}
	if n, had := r.EndQuota(Holder{UID: 7}, true); n != user || !had || r.OfUser(7) != 0 {
		t.Error("the account does not end with the last of its quotas", n, had)
	}
	b.AddPins(-15)
	if got, want := state(), "group 0 of 0, user 0 of 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAccountNumbers shows that the number of an account is free once no file has it.
func TestAccountNumbers(t *testing.T) {
	r := newRoom(t)
	for uid := range uint32(MaxAccounts) {
		if _, _, err := r.OpenAccount(Holder{UID: uid}, 1, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.OpenAccount(Holder{UID: 1000}, 1, false); err == nil {
		t.Error("there is no end of accounts")
	}
	n, _ := r.EndQuota(Holder{UID: 5}, false)
	if r.OfUser(5) != 0 {
		t.Error("new files are charged to an account that ends")
	}
	if _, _, err := r.OpenAccount(Holder{UID: 1000}, 1, false); err == nil {
		t.Error("the number is taken again before its files are gone")
	}
	r.DropAccount(n)
	if got, fresh, err := r.OpenAccount(Holder{UID: 1000}, 1, false); got != n || !fresh || err != nil {
		t.Errorf("account %d, fresh %v, %v; want %d", got, fresh, err, n)
	}
}
