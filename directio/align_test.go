package directio

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"os"
	"testing"
)

// TestConstants pins what vLLM's connector computes with (B12).
func TestConstants(t *testing.T) {
	if Alignment != 4096 || PaddingBytes != 8192 {
		t.Errorf("Alignment %d, PaddingBytes %d", Alignment, PaddingBytes)
	}
	for n, want := range map[int64]int64{0: 0, 1: 4096, 4095: 4096, 4096: 4096, 4097: 8192, 1 << 40: 1 << 40} {
		if got := AlignUp(n); got != want {
			t.Errorf("AlignUp(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestEstimateStaging shows the formula and where it ends (B13).
func TestEstimateStaging(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		want  int64 // -1: refused
	}{
		{nil, 0},
		{[]int64{0}, 8192},
		{[]int64{1}, 12288},
		{[]int64{4096}, 12288},
		{[]int64{4097, 1 << 20}, 16384 + 1<<20 + 8192},
		{[]int64{-1}, -1},
		{[]int64{5, math.MinInt64}, -1},
		{[]int64{math.MaxInt64}, -1},
		{[]int64{math.MaxInt64 - 8192}, -1},
		{[]int64{math.MaxInt64 - 8192 - 4096}, math.MaxInt64 - 4095},
		{[]int64{1 << 62, 1 << 62}, -1},
	} {
		got, err := EstimateStaging(c.sizes...)
		if c.want < 0 && !errors.Is(err, os.ErrInvalid) || c.want >= 0 && (err != nil || got != c.want) {
			t.Errorf("%d: %d, %v, want %d", c.sizes, got, err, c.want)
		}
	}
}

// FuzzEstimateStaging compares with arithmetic that has no limits (B13).
func FuzzEstimateStaging(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add(make([]byte, 80))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var sizes []int64
		for len(raw) >= 8 {
			sizes = append(sizes, int64(binary.LittleEndian.Uint64(raw)))
			raw = raw[8:]
		}
		sum, bad := new(big.Int), false
		for _, n := range sizes {
			need := new(big.Int).Add(big.NewInt(n), big.NewInt(4095))
			need.And(need, big.NewInt(-4096))
			sum.Add(sum, need.Add(need, big.NewInt(8192)))
			bad = bad || n < 0
		}
		got, err := EstimateStaging(sizes...)
		if bad = bad || !sum.IsInt64(); bad != (err != nil) || !bad && got != sum.Int64() {
			t.Fatalf("%d: %d, %v, want %v", sizes, got, err, sum)
		}
	})
}
