package main

import (
	"strings"
	"testing"
	"time"
)

func TestTails(t *testing.T) {
	var times []time.Duration
	for i := range 200 {
		times = append(times, time.Duration(200-i)*time.Microsecond)
	}
	if got, want := tailsOf(times), (tails{100.5, 100, 198, 200}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := tailsOf([]time.Duration{1500}), (tails{1.5, 1.5, 1.5, 1.5}); got != want {
		t.Errorf("of one: got %v, want %v", got, want)
	}
}

// A pass keeps a time of each operation, and of its end from the close of the file on, as long as there is room.
func TestPassKeepsTimes(t *testing.T) {
	p, err := newPool(1, 4*kib)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	set, err := newBlockSet(&target{name: shmName, dir: t.TempDir()}, "group", 4*kib, 0, 20)
	if err != nil {
		t.Fatal(err)
	}
	w := newWork(1, set.count, set.store)
	w.once, w.times, w.commits = true, make([]time.Duration, 0, 50), newTimes(1)
	var elapsed time.Duration
	for range 2 {
		result, err := p.run(t.Context(), w, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		elapsed += result.elapsed
	}
	if len(w.times) != 40 || len(w.commits) != 40 {
		t.Fatalf("got %d times and %d of commits, want 40", len(w.times), len(w.commits))
	}
	sum := time.Duration(0)
	for i, d := range w.times {
		if sum += d; w.commits[i] <= 0 || w.commits[i] > d {
			t.Errorf("operation %d: %v, of that %v from the close on", i, d, w.commits[i])
		}
	}
	if sum != elapsed {
		t.Errorf("all operations: %v, the passes: %v", sum, elapsed)
	}
	if err := p.once(t.Context(), w); err != nil || len(w.times) != cap(w.times) {
		t.Errorf("got %d times, %v, want no more than %d", len(w.times), err, cap(w.times))
	}
	if got := newTimes(2); got != nil {
		t.Errorf("two threads: room for %d times, want none", cap(got))
	}
}

// The ratio is of the p99, and only the goal of the issue judges it.
func TestTimesRow(t *testing.T) {
	times := map[string][]time.Duration{kvfsName: {10000, 30000, 20000}, hugeName: {10000}, shmName: {1}}
	for _, c := range []struct {
		targets []string
		size    int
		want    string // the row, without spaces
	}{
		{[]string{shmName, hugeName, kvfsName}, 4 * mib, "|4MiB|20.0|20.0/30.0/30.0|10.0|10.0/10.0/10.0|3.00|2.0,missed|"},
		{[]string{shmName, hugeName, kvfsName}, mib, "|1MiB|20.0|20.0/30.0/30.0|10.0|10.0/10.0/10.0|3.00||"},
		{[]string{shmName, kvfsName}, mib, "|1MiB|20.0|20.0/30.0/30.0|0.0|0.0/0.0/0.0|30000.00||"},
		{[]string{shmName}, mib, ""},
	} {
		b := &bench{report: newReport(false)}
		for _, name := range c.targets {
			b.targets = append(b.targets, &target{name: name})
		}
		b.timesRow("fresh", "T", "us", c.size, func(t *target) []time.Duration { return times[t.name] })
		var out strings.Builder
		b.report.print(&out)
		if got := strings.ReplaceAll(out.String(), " ", ""); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v, %d: got\n%s", c.targets, c.size, out.String())
		}
		for _, r := range b.report.rows {
			if r.Target == kvfsName && r.Unit == "us, p99" && r.Value != 30 {
				t.Errorf("%+v: want 30", r)
			}
		}
	}
}
