package directio

import "testing"

// TestAlignUp shows that pages are those that vLLM's connector computes with (B12).
func TestAlignUp(t *testing.T) {
	for n, want := range map[int64]int64{0: 0, 1: 4096, 4095: 4096, 4096: 4096, 4097: 8192, 1 << 40: 1 << 40} {
		if got := AlignUp(n); got != want {
			t.Errorf("AlignUp(%d) = %d, want %d", n, got, want)
		}
	}
}
