package tiers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
)

// TestReleaseRequest: when a request is released its blocks may go, in all groups, but not those that somebody
// else has asked for since, or for which a user of the same name did. (C16)
func TestReleaseRequest(t *testing.T) {
	all := tiers.PresenceOptions{Lease: true, Request: "req"}
	for _, c := range []struct {
		name    string
		also    tiers.PresenceOptions // asks for h/0 after the request
		release func(e *tiers.Engine) int
		ended   int
		want    string // g/0, h/0, and two others, after two more were stored
	}{
		{"nobody", tiers.PresenceOptions{}, func(*tiers.Engine) int { return 0 }, 0, "mm.."},
		{"the request", tiers.PresenceOptions{}, func(e *tiers.Engine) int { return e.ReleaseRequest(nil, "req") }, 2, "..mm"},
		{"another request", tiers.PresenceOptions{}, func(e *tiers.Engine) int { return e.ReleaseRequest(nil, "re") }, 0, "mm.."},
		{"that of a user", tiers.PresenceOptions{}, func(e *tiers.Engine) int { return e.ReleaseRequest(&event.Viewer{UID: 1}, "req") }, 0, "mm.."},
		{"after another lease", tiers.PresenceOptions{Lease: true}, func(e *tiers.Engine) int { return e.ReleaseRequest(nil, "req") }, 1, ".m.m"},
		{"both requests", tiers.PresenceOptions{Lease: true, Request: "b"}, func(e *tiers.Engine) int {
			return e.ReleaseRequest(nil, "b") + e.ReleaseRequest(nil, "req")
		}, 3, "..mm"},
	} {
		clock := newTestClock()
		w := open(t, shmDir(t), tiers.Options{CapacityBytes: 4 * page, LookupLease: time.Hour, WriteTimeout: time.Minute, Now: clock.now})
		names := []string{"g/0", "h/0", "2", "3"}
		must(t, w.mkdir("g"), w.mkdir("h"))
		for _, name := range names {
			must(t, w.put(10, name, fill("1p", "x")))
		}
		clock.add(2 * time.Hour) // the writers' own look-ups
		w.presences(all, "g/0", "h/0")
		clock.add(time.Minute)
		w.presences(c.also, "h/0")
		if got := c.release(w.e); got != c.ended {
			t.Errorf("%s: %d leases ended, want %d", c.name, got, c.ended)
		}
		must(t, w.put(10, "new", fill("1p", "x")), w.put(10, "newer", fill("1p", "x")))
		if got := w.states(tiers.PresenceOptions{}, names...); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		w.close(false)
	}
}

// TestReleaseBound: what is remembered of requests that are never released has a bound, and is forgotten
// when its time is over.
func TestReleaseBound(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), tiers.Options{CapacityBytes: 16 * page, LookupLease: time.Hour, Now: clock.now})
	must(t, w.put(10, "a", fill("1p", "x")))
	const most = 1 << 18
	for i := range most + 10 {
		w.e.Presences([][]byte{[]byte("a")}, tiers.PresenceOptions{Lease: true, Request: fmt.Sprint(i)}, make([]tiers.Place, 1))
	}
	if got := w.e.Leased(); got != most {
		t.Errorf("%d leases are remembered, want %d", got, most)
	}
	clock.add(2 * time.Hour)
	w.presences(tiers.PresenceOptions{Lease: true, Request: "last"}, "a")
	if got := w.e.Leased(); got != 1 {
		t.Errorf("%d leases are remembered after their time, want 1", got)
	}
	if got := w.e.ReleaseRequest(nil, "last"); got != 1 || w.e.Leased() != 0 {
		t.Errorf("%d ended, %d are left", got, w.e.Leased())
	}
	w.close(false)
}
