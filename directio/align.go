package directio

import (
	"errors"
	"fmt"
	"math"
	"os"
)

// AlignUp returns n rounded up to a multiple of Alignment. n must lie between 0 and
// the largest multiple of Alignment in an int64.
func AlignUp(n int64) int64 { return (n + Alignment - 1) &^ (Alignment - 1) }

// errStagingOverflow is why EstimateStaging fails for sizes near the end of int64.
var errStagingOverflow = errors.New("staging estimate exceeds 63 bits")

// EstimateStaging returns the bytes of staging that direct I/O of ranges of the
// given sizes needs wherever they begin: the sum of AlignUp(size) + PaddingBytes.
// It fails with os.ErrInvalid for a negative size and for a sum beyond int64.
//
// Source: _DIRECT_IO_ALIGNMENT, _DIRECT_IO_PADDING_BYTES and _align_up of vLLM's
// Mooncake store connector.
func EstimateStaging(sizes ...int64) (int64, error) {
	var sum int64
	for i, size := range sizes {
		if size < 0 {
			return 0, fmt.Errorf("directio: size %d of %d is %d: %w", i, len(sizes), size, os.ErrInvalid)
		}
		if size > math.MaxInt64-PaddingBytes-Alignment {
			return 0, fmt.Errorf("directio: size %d of %d is %d: %w: %w", i, len(sizes), size, errStagingOverflow, os.ErrInvalid)
		}
		need := AlignUp(size) + PaddingBytes
		if sum > math.MaxInt64-need {
			return 0, fmt.Errorf("directio: %d sizes: %w: %w", len(sizes), errStagingOverflow, os.ErrInvalid)
		}
		sum += need
	}
	return sum, nil
}

// SplitBySize cuts sizes into runs [first, end) whose EstimateStaging fits in
// budgetBytes, as long as they can be and in order; the number of sizes in a run
// does not matter. Sizes that exceed the budget alone are in no run; tooBig holds
// their indexes in order. It fails with os.ErrInvalid where EstimateStaging of a
// single size does.
func SplitBySize(sizes []int64, budgetBytes int64) (runs [][2]int, tooBig []int, err error) {
	first, sum := 0, int64(0)
	cut := func(end int) {
		if first < end {
			runs = append(runs, [2]int{first, end})
		}
		first, sum = end, 0
	}
	for i, size := range sizes {
		need, err := EstimateStaging(size)
		if err != nil {
			return nil, nil, err
		}
		if need > budgetBytes {
			cut(i)
			first = i + 1
			tooBig = append(tooBig, i)
			continue
		}
		if sum > budgetBytes-need {
			cut(i)
		}
		sum += need
	}
	cut(len(sizes))
	return runs, tooBig, nil
}
