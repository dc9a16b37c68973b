package query

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/outcome"
)

// TestWhy shows how verdicts are written.
func TestWhy(t *testing.T) {
	s, e := newService(t, nil)
	now := time.Date(2026, 11, 20, 10, 0, 13, 0, time.UTC)
	s.now = func() time.Time { return now }
	at := now.Add(-12500 * time.Millisecond)
	e.verdicts = map[string]outcome.Verdict{
		"g0/a": {Kind: outcome.Evicted, Tier: "memory", Rule: "capacity", Time: at.In(time.FixedZone("x", 3600)), Text: "evicted from memory: memory was full, and no other tier had it"},
		"g0/b": {Kind: outcome.Present, Tier: "memory,disk", Time: at, Text: "in memory and on disk"},
		"g0/c": {Kind: outcome.Removed, By: "thread 12", Time: at.Add(-time.Hour), Text: "unlinked by thread 12"},
		"g0/d": {Kind: outcome.Renamed, To: "g0/\xff", Time: now.Add(time.Hour), Text: "renamed"},
		"g0/e": {Kind: outcome.Elsewhere, Groups: []string{"g1", "g2"}, Text: "other groups have it"},
		"g0/f": {Kind: outcome.NeverStored, Time: now.Add(-50 * time.Hour), Text: "nothing is known of it"},
	}
	want := `{"op": "why", "verdicts": [` +
		`{"path": "g0/a", "verdict": "evicted", "tier": "memory", "rule": "capacity", "time": "2026-11-20T10:00:00.5Z", "age_seconds": 12.5, "text": "evicted from memory 12.5 s ago: memory was full, and no other tier had it"}, ` +
		`{"path": "g0/b", "verdict": "present", "tier": "memory,disk", "time": "2026-11-20T10:00:00.5Z", "age_seconds": 12.5, "text": "in memory and on disk"}, ` +
		`{"path": "g0/c", "verdict": "removed", "by": "thread 12", "time": "2026-11-20T09:00:00.5Z", "age_seconds": 3612.5, "text": "unlinked by thread 12 60 min ago"}, ` +
		`{"path": "g0/d", "verdict": "renamed", "to": "g0/�", "time": "2026-11-20T11:00:13Z", "age_seconds": 0, "text": "renamed 0.0 s ago"}, ` +
		`{"path": "g0/e", "verdict": "elsewhere", "groups": ["g1", "g2"], "text": "other groups have it"}, ` +
		`{"path": "g0/f", "verdict": "never_stored", "time": "2026-11-18T08:00:13Z", "age_seconds": 180000, "text": "nothing is known of it (things are remembered for 2 days)"}, ` +
		`{"path": "g0/z", "verdict": "never_stored", "text": "nothing is known of it"}]}`
	for _, request := range []string{
		`{"op": "why", "keys": ["g0/a", "g0/b", "g0/c", "g0/d", "g0/e", "g0/f", "g0/z"]}`,
		`{"op": "why", "hashes": ["a", "b", "c", "d", "e", "f", "z"], "group": "g0"}`,
	} {
		if got := ask(t, s, request); got != want {
			t.Errorf("%s:\n got %s\nwant %s", request, got, want)
		}
	}
}

// TestVerdictText shows where in a sentence the age is put.
func TestVerdictText(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		kind       outcome.Kind
		text, want string
	}{
		{outcome.Evicted, "evicted from disk: it was full, and no other tier had it", "evicted from disk 2.0 s ago: it was full, and no other tier had it"},
		{outcome.Replaced, "replaced by another version, which is gone", "replaced by another version 2.0 s ago, which is gone"},
		{outcome.NoRoom, "memory had no room; it is still on disk", "memory had no room 2.0 s ago; it is still on disk"},
		{outcome.Renamed, "renamed to a: b, c", "renamed to a: b, c 2.0 s ago"},
		{outcome.Expired, "its time to live had passed", "its time to live had passed 2.0 s ago"},
		{outcome.Corrupt, "", " 2.0 s ago"},
	} {
		if got := VerdictText(outcome.Verdict{Kind: c.kind, Time: now.Add(-2 * time.Second), Text: c.text}, now); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
