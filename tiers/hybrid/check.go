package hybrid

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/block"
)

// ErrSpec marks a Spec that is not supported.
var ErrSpec = errors.New("kvfs does not support")

// ErrRange marks a question about tokens that do not exist.
var ErrRange = errors.New("out of range")

// reasons collects the reasons against a Spec.
type reasons []string

func (r *reasons) add(format string, args ...any) {
	*r = append(*r, fmt.Sprintf(format, args...))
}

// group adds a reason that names a group by its position.
func (r *reasons) group(i int, format string, args ...any) {
	r.add("group %d: %s", i, fmt.Sprintf(format, args...))
}

// err returns nil if there are no reasons, else all of them in one error.
func (r reasons) err() error {
	if len(r) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrSpec, strings.Join(r, "; "))
}

// CheckName returns nil if name can name a Spec. It may be the name of a model, with slashes.
func CheckName(name string) error {
	odd := func(r rune) bool { return !strconv.IsPrint(r) }
	if name == "" || len(name) > MaxName || !utf8.ValidString(name) || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("%.64q cannot name a spec: want 1 to %d bytes, all of them printable", name, MaxName)
	}
	return nil
}

// CheckGroupName returns nil if name can name a Group. The name becomes a part of paths.
func CheckGroupName(name string) error {
	bad := len(name) > block.MaxName
	for part := range strings.SplitSeq(name, "/") {
		bad = bad || block.CheckName(part) != nil
	}
	if bad {
		return fmt.Errorf("%.64q cannot stand in a path: want 1 to %d bytes without empty components, \".\", \"..\" and NUL", name, block.MaxName)
	}
	return nil
}

// Check returns nil if New accepts s, else an ErrSpec with all reasons against it, joined by "; ".
// Reasons name a group by its position.
func (s Spec) Check() error {
	s = s.withDefaults()
	if s.CapacityOnly {
		return nil
	}
	var r reasons
	s.unsupported(&r)
	s.sizes(&r)
	s.unwrapped(&r)
	s.labels(&r)
	s.retention(&r)
	s.combinations(&r)
	return r.err()
}

// unsupported adds what engines refuse when their connector is set up, in their order and words.
// Engines do not look into uniform wrappers; unwrapped does.
func (s *Spec) unsupported(r *reasons) {
	if s.Groups == nil {
		r.add("kv_cache_config is required: no list of groups")
	}
	for i, g := range s.Groups {
		if !g.Uniform {
			s.kindReason(r, i, g)
		}
	}
	if len(s.Groups) > 1 && (s.PrefillContext > 1 || s.DecodeContext > 1) {
		r.add("PCP/DCP > 1 (pcp=%d, dcp=%d) with hybrid attention", s.PrefillContext, s.DecodeContext)
	}
}

// unwrapped adds what unsupported would have found inside uniform wrappers.
func (s *Spec) unwrapped(r *reasons) {
	for i, g := range s.Groups {
		if g.Uniform {
			s.kindReason(r, i, g)
		}
	}
}

func (s *Spec) kindReason(r *reasons, i int, g Group) {
	switch {
	case g.Kind == Cross:
		r.group(i, "CrossAttentionSpec")
	case g.Kind == Mamba && g.BlockSize != s.CacheBlockSize:
		r.group(i, "MambaSpec with block_size=%d != cache_config.block_size=%d (mamba_cache_mode != 'align')",
			g.BlockSize, s.CacheBlockSize)
	}
}

// sizes adds what makes a search impossible: missing sizes, sizes that do not divide each other,
// and unknown kinds.
func (s *Spec) sizes(r *reasons) {
	if len(s.Groups) > MaxGroups {
		r.add("%d groups, %d is the limit", len(s.Groups), MaxGroups)
	}
	h, sched := s.HashBlockSize, s.SchedulerBlockSize
	hashOK := inRange(r, "", "hash_block_size", h, MaxBlockSize)
	schedOK := false
	if sched == 0 {
		// It was not set, and no default exists.
		r.add("scheduler_block_size: the block sizes have no common multiple up to %d", MaxBlockSize)
	} else {
		schedOK = inRange(r, "", "scheduler_block_size", sched, MaxBlockSize)
	}
	if hashOK && schedOK && sched%h != 0 {
		r.add("scheduler_block_size (%d) must be a multiple of hash_block_size (%d)", sched, h)
	}
	for i, g := range s.Groups {
		if !g.Kind.known() {
			r.group(i, "No manager registered for KVCacheSpec %.64q", g.Kind)
		}
		at := fmt.Sprintf("group %d: ", i)
		if inRange(r, at, "block_size", g.BlockSize, MaxBlockSize) {
			if hashOK && g.BlockSize%h != 0 {
				r.group(i, "block_size must be divisible by hash_block_size (%d, %d)", g.BlockSize, h)
			}
			if schedOK && sched%g.BlockSize != 0 {
				r.group(i, "scheduler_block_size must be a multiple of each group's block_size (%d, %d)", sched, g.BlockSize)
			}
		}
		if g.Kind.window() {
			inRange(r, at, "window", g.Window, MaxWindow)
		}
		if g.Kind == ChunkedLocal {
			inRange(r, at, "chunk", g.Chunk, MaxWindow)
		}
	}
}

// inRange reports whether a size is in 1..limit. If not, it adds a reason.
func inRange(r *reasons, at, name string, size, limit int) bool {
	if size > 0 && size <= limit {
		return true
	}
	r.add("%s%s (%d) must be in 1..%d", at, name, size, limit)
	return false
}

// labels adds impossible names, modes and counts. Two groups of one name would share the names of
// their blocks.
func (s *Spec) labels(r *reasons) {
	names := map[string]int{}
	for i, g := range s.Groups {
		if first, ok := names[g.Name]; ok {
			r.group(i, "has the name %.64q of group %d", g.Name, first)
		} else {
			names[g.Name] = i
		}
		if err := CheckGroupName(g.Name); err != nil {
			r.group(i, "name %v", err)
		}
		if g.Kind == Mamba && g.Mode != modeAlign && g.Mode != modeAll && g.Mode != modeNone {
			r.group(i, "unknown mamba_cache_mode %.64q", g.Mode)
		}
		if g.Ranks < 0 || g.Ranks > MaxRanks {
			r.group(i, "ranks (%d) must be in 0..%d", g.Ranks, MaxRanks)
		}
		if max(g.Window, g.Chunk, g.Variant) > math.MaxInt32 || min(g.Window, g.Chunk, g.Variant) < math.MinInt32 {
			r.group(i, "window (%d), chunk (%d) and variant (%d) must fit into 32 bits", g.Window, g.Chunk, g.Variant)
		}
	}
	inRange(r, "", "cache_config.block_size", s.CacheBlockSize, MaxBlockSize)
	inRange(r, "", "prefill context parallel size", s.PrefillContext, MaxBlockSize)
	inRange(r, "", "decode context parallel size", s.DecodeContext, MaxBlockSize)
}

// retention adds reasons against the store interval.
func (s *Spec) retention(r *reasons) {
	if s.Retention == nil {
		return
	}
	interval, sched := *s.Retention, s.SchedulerBlockSize
	if interval > math.MaxInt32 {
		r.add("prefix_cache_retention_interval (%d) must be at most %d", interval, math.MaxInt32)
	}
	if interval < 0 || sched > 0 && interval%sched != 0 {
		r.add("prefix_cache_retention_interval (%d) must be non-negative and a multiple of scheduler_block_size (%d).", interval, sched)
	}
	if interval <= 0 {
		return
	}
	for _, g := range s.Groups {
		if g.Kind.window() || g.Kind == Mamba {
			return
		}
	}
	r.add("prefix_cache_retention_interval is set but this model has no sliding-window or Mamba KV cache group, so retention has no effect. " +
		"Set it to 0 (it only applies to sliding-window and Mamba attention).")
}

// combinations adds groups that a search accepts and then fails on, or for which it would name
// blocks that it never looked for.
func (s *Spec) combinations(r *reasons) {
	fine := s.fine()
	for _, cl := range s.classes() {
		for _, i := range cl.groups {
			if fine && cl.kind.window() && cl.block > s.HashBlockSize {
				r.group(i, "SlidingWindowManager does not support fine-grained (partial) cache hits")
			}
			if cl.kind != ChunkedLocal {
				continue
			}
			if cl.block != s.SchedulerBlockSize || fine && cl.block > s.HashBlockSize {
				r.group(i, "KV cache groups with different block sizes are not compatible with chunked local attention now")
			}
			if cl.eagle {
				r.group(i, "Hybrid KV cache is not supported for eagle + chunked local attention.")
			}
			if cl.block > 0 && cl.chunk%cl.block != 0 {
				r.group(i, "attention chunk (%d) must be a multiple of block_size (%d)", cl.chunk, cl.block)
			}
		}
	}
}
