package main

import "testing"

// The topic runs from start to end: each round replaces the daemon, and a client opens blocks all the time.
func TestTakeoverTopic(t *testing.T) {
	b, out := runTopic(t, "takeover")
	rows := rowsOf(t, b, "takeover", kvfsName)
	if len(rows) != 1 || rows[0].Value <= 0 || len(rows[0].Samples) != b.config.rounds {
		t.Errorf("%+v", rows)
	}
	mustContain(t, out, "**Pause of a client", "| 100")
}
