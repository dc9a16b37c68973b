package hybrid

import "fmt"

// Engine is what of an engine's config decides the block sizes of its cache.
type Engine struct {
	CacheBlockSize int  // block_size of the cache config, tokens
	DecodeContext  int  // decode context parallel size; 0 means 1
	MatchUnit      int  // prefix_match_unit, tokens; 0: not set
	NoReuse        bool // neither prefix caching nor a connector: prompts are not hashed in smaller blocks
}

// BlockSizes returns the scheduler block size and the hash block size that an engine uses
// for these groups. A single group has the size of the cache config, whatever its own is.
// With several, each is scaled by the size of the decode context, but not those of Mamba states.
// The prefill context parallel size changes nothing: ranks of it do not share the cache.
func BlockSizes(e Engine, groups []Group) (scheduler, hash int, err error) {
	scale := max(e.DecodeContext, 1)
	if len(groups) <= 1 {
		size := e.CacheBlockSize * scale
		if size <= 0 || size > MaxBlockSize {
			return 0, 0, fmt.Errorf("%w: block_size=%d is not in 1..%d", ErrSpec, size, MaxBlockSize)
		}
		return size, size, nil
	}
	sizes := make([]int, len(groups))
	whole := e.NoReuse
	for i, g := range groups {
		sizes[i] = g.BlockSize
		if g.Kind != Mamba {
			sizes[i] *= scale
		} else if g.Mode != "" && g.Mode != modeAlign {
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
	if e.MatchUnit == 0 {
		for _, size := range sizes {
			hash = gcd(hash, size)
		}
		return scheduler, hash, nil
	}
	for _, size := range sizes {
		if e.MatchUnit < 0 || size%e.MatchUnit != 0 {
			var r reasons
			r.add("Invalid prefix_match_unit=%d; all KV cache group block sizes must be divisible by prefix_match_unit. Got group block sizes=%s.",
				e.MatchUnit, list(sizes))
			return 0, 0, r.err()
		}
	}
	return scheduler, e.MatchUnit, nil
}

// list writes sizes as [32, 16].
func list(sizes []int) string {
	text := "["
	for i, size := range sizes {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(size)
	}
	return text + "]"
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
