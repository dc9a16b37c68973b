package bench

import (
	"strings"
	"testing"
)

// TestBusy shows from which share of the CPUs on a bench warns.
func TestBusy(t *testing.T) {
	before, err := parseCPU("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want string
	}{
		{"cpu  104 0 105 1090 5 1 0 0 0 0\n", ""},
		{"cpu  120 0 110 1050 5 5 5 5 0 0\n", "other processes use 45% of the CPUs"},
		{"cpu  100 0 100 1000 0 0 0 0 0 0\n", ""},
	} {
		now, err := parseCPU(c.text)
		if got := busyNote(now.since(before)); err != nil || !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q: %q, %v", c.text, got, err)
		}
	}
	if _, err := parseCPU("cpu 1 2\n"); err == nil {
		t.Error("too few fields are accepted")
	}
}
