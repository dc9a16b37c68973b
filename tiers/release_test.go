package tiers_test

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestReleaseRequest: when a request is released its blocks may go, in all groups, but not those that somebody
// else has asked for since, or for which a user of the same name did. (C16)
func TestReleaseRequest(t *testing.T) {
	all := names.PresenceOptions{Lease: true, Request: "req"}
	for _, c := range []struct {
		name    string
		also    names.PresenceOptions // asks for h/0 after the request
		release func(e *tiers.Engine) int
		ended   int
		want    string // g/0, h/0, and two others, after two more were stored
	}{
		{"nobody", names.PresenceOptions{}, func(*tiers.Engine) int { return 0 }, 0, "mm.."},
		{"the request", names.PresenceOptions{}, func(e *tiers.Engine) int { return e.ReleaseRequest(nil, "req") }, 2, "..mm"},
		{"another request", names.PresenceOptions{}, func(e *tiers.Engine) int { return e.ReleaseRequest(nil, "re") }, 0, "mm.."},
		{"that of a user", names.PresenceOptions{}, func(e *tiers.Engine) int { return e.ReleaseRequest(&event.Viewer{UID: 1}, "req") }, 0, "mm.."},
		{"after another lease", names.PresenceOptions{Lease: true}, func(e *tiers.Engine) int { return e.ReleaseRequest(nil, "req") }, 1, ".m.m"},
		{"both requests", names.PresenceOptions{Lease: true, Request: "b"}, func(e *tiers.Engine) int {
			return e.ReleaseRequest(nil, "b") + e.ReleaseRequest(nil, "req")
		}, 3, "..mm"},
	} {
		clock := newTestClock()
		w := open(t, shmDir(t), state.Options{CapacityBytes: 4 * page, LookupLease: time.Hour, WriteTimeout: time.Minute, Now: clock.now})
		blocks := []string{"g/0", "h/0", "2", "3"}
		must(t, w.mkdir("g"), w.mkdir("h"))
		for _, name := range blocks {
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
		if got := w.states(names.PresenceOptions{}, blocks...); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		w.close(false)
	}
}
