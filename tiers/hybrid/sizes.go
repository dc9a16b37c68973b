package hybrid

import "fmt"

// BlockSizes returns the scheduler block size and the hash block size that an engine uses for these
// groups, in tokens. For a single group both are the size of the cache config (block_size),
// whatever the group's own size is.
func BlockSizes(cacheBlockSize int, groups []Group) (scheduler, hash int, err error) {
	if len(groups) <= 1 {
		if cacheBlockSize <= 0 || cacheBlockSize > MaxBlockSize {
			return 0, 0, fmt.Errorf("%w: block_size=%d is not in 1..%d", ErrSpec, cacheBlockSize, MaxBlockSize)
		}
		return cacheBlockSize, cacheBlockSize, nil
	}
	sizes := make([]int, len(groups))
	whole := false
	for i, g := range groups {
		sizes[i] = g.BlockSize
		if g.Kind == Mamba && g.Mode != "" && g.Mode != modeAlign {
			whole = true // states of other modes lie at no smaller boundary
		}
		if sizes[i] <= 0 || sizes[i] > MaxBlockSize {
			return 0, 0, fmt.Errorf("%w: group %d: block_size=%d is not in 1..%d", ErrSpec, i, sizes[i], MaxBlockSize)
		}
	}
	scheduler = lcm(sizes...)
	if scheduler == 0 {
		return 0, 0, fmt.Errorf("%w: the least common multiple of the block sizes is over %d", ErrSpec, MaxBlockSize)
	}
	if whole {
		return scheduler, scheduler, nil
	}
	for _, size := range sizes {
		hash = gcd(hash, size)
	}
	return scheduler, hash, nil
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// lcm returns the least common multiple, 0 if a number is not positive or the
// multiple is over MaxBlockSize.
func lcm(numbers ...int) int {
	all := 1
	for _, n := range numbers {
		if n <= 0 || n > MaxBlockSize {
			return 0
		}
		all = all / gcd(all, n) * n
		if all > MaxBlockSize {
			return 0
		}
	}
	return all
}

// ceilDiv returns a/b rounded up, for a >= 0 and b > 0.
func ceilDiv(a, b int) int { return (a + b - 1) / b }

// floorDiv returns a/b rounded down, for b > 0.
func floorDiv(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
