package room

import (
	"fmt"
	"testing"
)

// TestLeases shows that the leases of a request come back the latest first, once, and no others.
func TestLeases(t *testing.T) {
	var l Leases
	one, other := Requester{-1, "r"}, Requester{7, "r"}
	l.Add(one, Lease{ID: 2, Until: 10, Before: 1}, 0)
	l.Add(other, Lease{ID: 3, Until: 11}, 0)
	l.Add(one, Lease{ID: 2, Until: 12, Before: 10}, 0)
	if got, want := fmt.Sprint(l.Release(one)), "[{2 12 10} {2 10 1}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if again := l.Release(one); len(again) != 0 || l.Len() != 1 {
		t.Errorf("again: %v, %d are left", again, l.Len())
	}
}

// TestLeasesBound shows that the number of leases is bounded, and that requests are forgotten when their last
// lease has ended.
func TestLeasesBound(t *testing.T) {
	var l Leases
	for i := range MaxLeases + 1 {
		l.Add(Requester{Request: fmt.Sprint(i)}, Lease{Until: 100 + int64(i%2)}, 0)
	}
	if l.Len() != MaxLeases {
		t.Errorf("%d leases", l.Len())
	}
	for _, row := range []struct {
		now  int64
		want int
	}{{99, MaxLeases}, {100, MaxLeases/2 + 1}, {101, MaxLeases/2 + 2}} {
		l.Add(Requester{Request: "more"}, Lease{Until: 200}, row.now)
		if l.Len() != row.want {
			t.Errorf("at %d: %d leases, want %d", row.now, l.Len(), row.want)
		}
	}
}
