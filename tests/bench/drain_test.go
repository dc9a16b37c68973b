package main

import (
	"strings"
	"testing"
	"time"
)

func TestDrainRates(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		points []drainPoint
		want   drainRate
		judged float64
	}{
		{"over when status first answered", []drainPoint{{2 * s, 100}}, drainRate{started: 50}, 50},
		{"over, seen twice", []drainPoint{{2 * s, 100}, {4 * s, 100}}, drainRate{started: 50}, 50},
		{"little left", []drainPoint{{8 * s, 60}, {9 * s, 80}, {10 * s, 100}}, drainRate{started: 10, left: 0.4}, 10},
		// A store was half done at 2 s: 30 at 3 s is no figure, 70 in 7 s is.
		{"most left", []drainPoint{{2 * s, 20}, {3 * s, 30}, {9 * s, 90}, {10 * s, 100}},
			drainRate{started: 10, alone: 10, left: 0.8}, 10},
		{"faster than the start", []drainPoint{{6 * s, 0}, {6 * s, 0}, {7 * s, 20}, {9 * s, 100}, {12 * s, 100}},
			drainRate{started: 100.0 / 9, alone: 40, left: 1}, 40},
		{"one leap", []drainPoint{{1 * s, 0}, {2 * s, 100}, {5 * s, 100}}, drainRate{started: 50, left: 1}, 50},
		{"nothing", []drainPoint{{1 * s, 0}}, drainRate{}, 0},
	} {
		got := drainRates(c.points)
		if diff := got.left - c.want.left; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s: left %v, want %v", c.name, got.left, c.want.left)
		}
		got.left = c.want.left
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		if j := got.judged(); j != c.judged {
			t.Errorf("%s: judged %v, want %v", c.name, j, c.judged)
		}
	}
}

// Blocks left in memory for the next daemon are freed also if that daemon does not start, or does
// not store them. (Feature A13.)
func TestDrainFreesWhatItLeft(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{failDiskEnv, "no disk tier today"},
		{failDrainEnv, "did not take 1 blocks"},
	} {
		t.Run(c.env, func(t *testing.T) {
			t.Setenv(c.env, "1")
			_, err := tryFake(t, "drain", "-sizes", "64KiB") // It looks at what is left.
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
