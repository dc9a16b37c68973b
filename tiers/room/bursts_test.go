package room

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/policy"
)

// TestBurst shows which uses are one burst: those of one process with pauses of 100 ms at most, for two seconds.
func TestBurst(t *testing.T) {
	const burstGap, burstMost = 100 * time.Millisecond, 2 * time.Second
	r := &Room{opts: Options{BurstGap: burstGap}}
	now := int64(time.Hour)
	use := func(process uint64, after time.Duration) policy.Burst {
		now += int64(after)
		return r.Burst(process, now)
	}
	one, two := use(1, 0), use(2, 0)
	if one == 0 || two == 0 || one == two {
		t.Fatalf("two processes: bursts %d and %d", one, two)
	}
	if got := use(1, burstGap); got != one || !r.Bursting(one, now) {
		t.Errorf("after the longest pause: burst %d, want %d", got, one)
	}
	if got := use(2, 1); got == two || r.Bursting(two, now) {
		t.Errorf("after a longer one: burst %d", got)
	}
	if got := use(1, -time.Second); got == one {
		t.Error("a clock that was set back does not end the burst")
	}
	began, first := now, use(3, 0)
	for use(3, burstGap) == first {
		if now-began > int64(burstMost) {
			t.Fatal("a burst without a pause goes on")
		}
	}
	if r.Bursting(0, now) {
		t.Error("burst 0 goes on")
	}
}

// TestManyBursts shows that the bursts that are told apart differ in what a policy tells them apart by; a process more
// ends the burst of the one that has paused longest.
func TestManyBursts(t *testing.T) {
	r := &Room{opts: Options{BurstGap: time.Second}}
	for round := range 3000 {
		places := map[policy.Burst]bool{}
		now := int64(round+1) * int64(time.Hour)
		first := r.Burst(100, now)
		for i := range uint64(maxBursts - 1) {
			places[r.Burst(101+i, now+1)%policy.MaxBursts] = true
		}
		if places[first%policy.MaxBursts] = true; len(places) != maxBursts {
			t.Fatalf("round %d: %d places for %d bursts", round, len(places), maxBursts)
		}
		if r.Burst(99, now+2); r.Bursting(first, now+2) || r.Burst(101, now+2) == 0 {
			t.Fatal("the wrong burst was ended")
		}
	}
}
