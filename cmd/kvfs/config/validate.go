package config

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// validate checks settings against each other; each alone was checked when it
// was decoded. A setting with a violation is not looked at again.
func (l *loader) validate() {
	l.validateMode()
	l.validateMemory()
	l.validateDisk()
	l.validateTiers()
	l.validateStaging()
	l.validateGroups()
	l.validatePeers()
	l.validateRDMA()
	l.validateSpecs()
	l.validateEvents()
}

// validateMode checks what the modes demand of memory and disk. Source: features of
// vLLM's Mooncake store connector, whose embedded mode needs a segment and whose
// standalone-store mode must not have one.
func (l *loader) validateMode() {
	c, memory, mode := l.cfg, l.cfg.Origin("memory.size"), l.cfg.Origin("mode")
	if !l.good("mode") {
		return
	}
	if c.Mode == ModeEmbedded {
		if memory.Source != Default && c.Memory.Size == 0 && l.good("memory.size") {
			l.fail(memory, "memory.size", scalar.Violate(scalar.ErrRange, "0 is out of range: mode %s (%v) needs memory", c.Mode, mode))
		} else if memory.Source != Default && c.Memory.Size < scalar.MiB && l.good("memory.size") {
			l.fail(memory, "memory.size", scalar.Violate(scalar.ErrRange, "%v is out of range: want at least %v", c.Memory.Size, scalar.Size(scalar.MiB)))
		}
		return
	}
	if c.Memory.Size != 0 && l.good("memory.size") {
		l.fail(memory, "memory.size", scalar.Violate(scalar.ErrInvalid, "%v excludes mode %s (%v), which contributes no memory: leave it out or set 0", c.Memory.Size, c.Mode, mode))
	}
	if len(c.Disk.Dirs) > 0 && l.good(diskDirs) {
		l.fail(c.Origin(diskDirs), diskDirs, scalar.Violate(scalar.ErrInvalid, "a disk tier excludes mode %s (%v), which contributes no disk: leave it out", c.Mode, mode))
	}
	if len(c.Tiers) > 0 && l.good("tiers") {
		l.fail(c.Origin("tiers"), "tiers", scalar.Violate(scalar.ErrInvalid, "a list of tiers excludes mode %s (%v), which has none: leave it out", c.Mode, mode))
	}
}

// validateMemory checks the watermarks.
func (l *loader) validateMemory() {
	const low, high = "memory.low_watermark", "memory.high_watermark"
	m := l.cfg.Memory
	if m.LowWatermark < m.HighWatermark || !l.good(low, high) {
		return
	}
	l.failLatest(low, high, scalar.Violate(scalar.ErrInvalid, "low_watermark %v (%v) must be below high_watermark %v (%v)",
		m.LowWatermark, l.cfg.Origin(low), m.HighWatermark, l.cfg.Origin(high)))
}

// failLatest records that two settings do not fit each other, at the one that
// comes from the later source; the first if they come from the same.
func (l *loader) failLatest(a, b string, err error) {
	l.fail(l.cfg.Origin(l.latest(a, b)), l.latest(a, b), err)
}

// latest returns which of two settings comes from the later source; a if both do.
func (l *loader) latest(a, b string) string {
	if l.cfg.Origin(a).Source < l.cfg.Origin(b).Source {
		return b
	}
	return a
}

// validateDisk checks that no directory of the SSD tier holds another one, or the
// memory tier, or is held by it: each of them takes all files in it for its own.
// Names are compared, not what symbolic links make of them.
func (l *loader) validateDisk() {
	l.validateSSD()
	type place struct{ setting, path string }
	var taken []place
	if dir := l.cfg.Memory.Dir; dir != "" && l.good("memory.dir") {
		taken = append(taken, place{"memory.dir", absolute(dir)})
	}
	for i, d := range l.cfg.Disk.Dirs {
		at := fmt.Sprintf("disk.dirs[%d].path", i)
		if d.Path == "" || !l.good(at) {
			continue
		}
		path := absolute(d.Path)
		for _, t := range taken {
			how := ""
			switch {
			case t.path == path:
				how = "is"
			case beneath(path, t.path):
				how = "is below"
			case beneath(t.path, path):
				how = "is above"
			default:
				continue
			}
			l.fail(l.cfg.Origin(at), at, scalar.Violate(scalar.ErrInvalid, "%q %s %s, %q", d.Path, how, t.setting, t.path))
			break
		}
		taken = append(taken, place{at, path})
	}
}

// absolute returns path from the root, clean.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path) // the working directory is gone: paths that are absolute still compare
}

// beneath reports whether path lies below dir; both are absolute and clean.
func beneath(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") && path != dir
}

// minUsable is the least usable staging memory: more than any block needs that
// is too small to be moved in place.
const minUsable = scalar.MiB

// Direct I/O moves whole aligned units, and needs room around a block for where it
// begins and ends. Source: _DIRECT_IO_ALIGNMENT and _DIRECT_IO_PADDING_BYTES of vLLM's
// Mooncake store connector.
const (
	stagingAlignment = 4 * scalar.KiB
	stagingPadding   = 8 * scalar.KiB
)

// padded returns the staging memory that a block of this size may need.
func padded(size scalar.Size) scalar.Size {
	if size > math.MaxInt64-stagingAlignment-stagingPadding {
		return math.MaxInt64 // more than there is, in any case
	}
	return (size+stagingAlignment-1)/stagingAlignment*stagingAlignment + stagingPadding
}

// validateStaging checks that what is usable of the staging memory suffices, for
// itself and for the blocks of each group, where there is a tier that needs it.
// Source: the staging budget of vLLM's Mooncake store connector, which there is none of
// with offloading off.
func (l *loader) validateStaging() {
	const size, ratio = "staging.size", "staging.usable_ratio"
	st := l.cfg.Staging
	usable := scalar.Size(float64(st.Size) * st.UsableRatio)
	if len(l.cfg.Disk.Dirs) == 0 || !l.good(size, ratio) {
		return
	}
	product := fmt.Sprintf("size %v (%v) times usable_ratio %v (%v) is %v", st.Size, l.cfg.Origin(size), st.UsableRatio, l.cfg.Origin(ratio), usable)
	if usable < minUsable {
		l.failLatest(size, ratio, scalar.Violate(scalar.ErrInvalid, "%s: want at least %v", product, minUsable))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(l.cfg.Groups)) {
		at := join(joinName("groups", name), "block_size")
		block := l.cfg.Groups[name].BlockSize
		if need := padded(block); block != 0 && need > usable && l.good(at) {
			l.failLatest(at, l.latest(size, ratio), scalar.Violate(scalar.ErrInvalid, "a block of %v (%v) needs %v of staging, and %s",
				block, l.cfg.Origin(at), need, product))
		}
	}
}

// validateGroups checks that what is to be enforced is said.
func (l *loader) validateGroups() {
	for _, name := range slices.Sorted(maps.Keys(l.cfg.Groups)) {
		g, at := l.cfg.Groups[name], joinName("groups", name)
		if strict := join(at, "strict"); g.Strict && g.BlockSize == 0 && l.good(strict, join(at, "block_size")) {
			l.fail(l.cfg.Origin(strict), strict, scalar.Violate(scalar.ErrInvalid, "strict needs block_size"))
		}
	}
}

// good reports whether none of the settings has a violation.
func (l *loader) good(paths ...string) bool {
	for _, path := range paths {
		if l.bad[path] {
			return false
		}
	}
	return true
}

// lookup returns the textual setting at path, which must exist.
func lookup(path string) *textSetting {
	for _, t := range textSettings() {
		if t.path == path {
			return t
		}
	}
	panic("config: no setting " + path)
}
