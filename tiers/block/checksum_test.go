package block

import (
	"math/rand/v2"
	"testing"
)

// TestAppend shows that the checksum of a whole is that of its parts.
func TestAppend(t *testing.T) {
	const seed = 1
	r := rand.New(rand.NewPCG(seed, seed))
	p := make([]byte, 3<<20)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	for range 50 {
		whole := p[:r.IntN(len(p))]
		sum := Sum(nil)
		for rest := whole; len(rest) > 0; {
			n := min(1+r.IntN(1<<r.IntN(22)), len(rest))
			sum = sum.Append(Sum(rest[:n]), int64(n))
			rest = rest[n:]
		}
		if sum != Sum(whole) {
			t.Fatalf("seed %d: %d bytes: got %v, want %v", seed, len(whole), sum, Sum(whole))
		}
	}
	if sum := Sum(p[:10]).Append(Sum(nil), 0); sum != Sum(p[:10]) {
		t.Error("appending nothing changes the checksum")
	}
}
