package tiers_test

import (
	"testing"

	"github.com/kvfs/kvfs/tiers"
)

// TestReasons: each reason has a word of its own.
func TestReasons(t *testing.T) {
	if s := tiers.Reason(0).String(); s != "" {
		t.Errorf("none is %q", s)
	}
	seen := map[string]tiers.Reason{}
	for r := tiers.ReasonCapacity; r <= tiers.ReasonNotHere; r++ {
		word := r.String()
		if other, ok := seen[word]; ok || word == "" {
			t.Errorf("reason %d is %q, as is %d", uint8(r), word, uint8(other))
		}
		seen[word] = r
	}
}
