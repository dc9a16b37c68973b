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
