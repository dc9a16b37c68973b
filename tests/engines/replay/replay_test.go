package replay

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// TestContent shows that Check takes what Fill makes, in all sizes, and finds
// each byte that is wrong, a page that is at another's place, and a block that
// has another's bytes.
func TestContent(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 4095, 4096, 4097, 3*4096 + 5, 1 << 20} {
		p := make([]byte, n)
		Fill(p, "a")
		if err := Check(p, "a"); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if n > 0 && Check(p, "b") == nil {
			t.Errorf("%d bytes of a pass for b", n)
		}
		for _, at := range []int{0, n / 2, n - 1} {
			if n == 0 {
				break
			}
			p[at] ^= 1
			if Check(p, "a") == nil {
				t.Errorf("%d bytes: byte %d is wrong, and passes", n, at)
			}
			p[at] ^= 1
		}
	}
	p := make([]byte, 3*pageBytes)
	Fill(p, "a")
	copy(p[pageBytes:], p[2*pageBytes:])
	if Check(p, "a") == nil {
		t.Error("the third page passes for the second")
	}
}
