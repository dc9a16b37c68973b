package device

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMeasureWakeUp shows that both figures are of a thread that did wake up, and that they leave the threads of the process where they were.
func TestMeasureWakeUp(t *testing.T) {
	var before, after unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &before))
	w := MeasureWakeUp()
	if w.Together <= 0 || (w.Apart > 0) != (before.Count() > 1) {
		t.Errorf("with %d processors: %+v", before.Count(), w)
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != before {
		t.Errorf("this thread may run on %v, before on %v: %v", after, before, err)
	}
	for w, want := range map[WakeUp]string{
		{Together: 4 * time.Microsecond}:                "to wake a thread takes 4µs; there is one processor",
		{66 * time.Microsecond, 4400 * time.Nanosecond}: "to wake a thread takes 66µs on another processor, 4µs on the same one",
	} {
		if w.String() != want || w.Dear() != (w.Apart > 0) {
			t.Errorf("%q, dear %v; want %q", w, w.Dear(), want)
		}
	}
}

// TestApart shows which processors are taken to share no core.
func TestApart(t *testing.T) {
	for _, of := range []struct{ first, n, from, want int }{{0, 2, 0, 1}, {0, 2, 1, 0}, {4, 3, 6, 4}, {0, 64, 0, 21}, {0, 64, 50, 7}} {
		var set unix.CPUSet
		for cpu := range of.n {
			set.Set(of.first + cpu)
		}
		if cpu := apart(&set, of.from); cpu != of.want {
			t.Errorf("%d from %d on, not %d: %d, want %d", of.n, of.first, of.from, cpu, of.want)
		}
	}
}
