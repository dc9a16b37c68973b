package directio

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"os"
	"slices"
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

// FuzzEstimateStaging compares with arithmetic that has no limits, and checks every
// promise of SplitBySize (B13, B15, B16, B18).
func FuzzEstimateStaging(f *testing.F) {
	f.Add([]byte{}, int64(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0}, int64(20000))
	f.Add(make([]byte, 80), int64(3*8192))
	f.Fuzz(func(t *testing.T, raw []byte, budget int64) {
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
		checkSplit(t, sizes, budget)
	})
}

// checkSplit checks what SplitBySize promises.
func checkSplit(t *testing.T, sizes []int64, budget int64) {
	runs, tooBig, err := SplitBySize(sizes, budget)
	if err != nil {
		if !slices.ContainsFunc(sizes, func(n int64) bool { _, err := EstimateStaging(n); return err != nil }) {
			t.Fatalf("%d: %v", sizes, err)
		}
		return
	}
	// Every index occurs once, in order.
	next, big := 0, tooBig
	for _, r := range append(runs, [2]int{len(sizes), len(sizes)}) {
		for len(big) > 0 && big[0] == next && next < r[0] {
			if need, _ := EstimateStaging(sizes[next]); need <= budget {
				t.Fatalf("%d needs %d, called too big for %d", next, need, budget)
			}
			next, big = next+1, big[1:]
		}
		if r[0] != next || r[1] < r[0] {
			t.Fatalf("%d by %d: runs %v, too big %v", sizes, budget, runs, tooBig)
		}
		need, err := EstimateStaging(sizes[r[0]:r[1]]...)
		if err != nil || need > budget && r[1] > r[0] {
			t.Fatalf("run %v needs %d of %d, %v", r, need, budget, err)
		}
		// As long as it can be.
		if r[1] < len(sizes) && !slices.Contains(tooBig, r[1]) {
			if more, err := EstimateStaging(sizes[r[0] : r[1]+1]...); err == nil && more <= budget {
				t.Fatalf("run %v could be longer: %d of %d", r, more, budget)
			}
		}
		next = r[1]
	}
	if len(big) > 0 {
		t.Fatalf("%d by %d: runs %v, too big %v", sizes, budget, runs, tooBig)
	}
}

// TestSplitBySize shows a few splits; the fuzz test has the rules (B15, B18).
func TestSplitBySize(t *testing.T) {
	const kib = 1 << 10
	for _, c := range []struct {
		sizes  []int64
		budget int64
		runs   [][2]int
		tooBig []int
	}{
		{nil, 0, nil, nil},
		{[]int64{1, 1, 1}, 3 * 12288, [][2]int{{0, 3}}, nil},
		{[]int64{1, 1, 1}, 2 * 12288, [][2]int{{0, 2}, {2, 3}}, nil},
		{[]int64{1, 64 * kib, 1}, 3 * 12288, [][2]int{{0, 1}, {2, 3}}, []int{1}},
		{[]int64{64 * kib}, 12288, nil, []int{0}},
		{[]int64{1, 1}, -1, nil, []int{0, 1}},
	} {
		runs, tooBig, err := SplitBySize(c.sizes, c.budget)
		if err != nil || !slices.Equal(runs, c.runs) || !slices.Equal(tooBig, c.tooBig) {
			t.Errorf("%d by %d: %v, %v, %v", c.sizes, c.budget, runs, tooBig, err)
		}
		checkSplit(t, c.sizes, c.budget)
	}
	many := make([]int64, 100_000) // no limit on the number
	if runs, _, _ := SplitBySize(many, 1<<40); len(runs) != 1 {
		t.Errorf("%d runs of many small sizes, want 1", len(runs))
	}
	if _, _, err := SplitBySize([]int64{1, -1}, 1<<20); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("negative size: %v", err)
	}
}
