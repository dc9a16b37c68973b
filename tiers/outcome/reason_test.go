package outcome

import "testing"

// TestReasons: each reason has a word of its own.
func TestReasons(t *testing.T) {
	if s := Reason(0).String(); s != "" {
		t.Errorf("none is %q", s)
	}
	seen := map[string]Reason{}
	for r := ReasonCapacity; r <= ReasonNotHere; r++ {
		word := r.String()
		if other, ok := seen[word]; ok || word == "" {
			t.Errorf("reason %d is %q, as is %d", uint8(r), word, uint8(other))
		}
		seen[word] = r
	}
}
