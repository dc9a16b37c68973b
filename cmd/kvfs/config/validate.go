package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// validate checks settings against each other; each alone was checked when it
// was decoded. A setting with a violation is not looked at again.
func (l *loader) validate() {
	l.validateMode()
	l.validateMemory()
	l.validateDisk()
	l.validateStaging()
	l.validateDirectIO()
	l.validatePeers()
	l.validateSpecs()
	l.validateEvents()
}

// validateMode checks what the modes demand. Source: features of vLLM's Mooncake
// store connector, whose embedded mode needs a segment and whose
// standalone-store mode must not have one.
func (l *loader) validateMode() {
	c := l.cfg
	memory := l.cfg.Origin("memory.size")
	switch c.Mode {
	case ModeEmbedded:
		if memory.Source != Default && c.Memory.Size == 0 && l.good("memory.size", "mode") {
			l.fail(memory, "memory.size", violate(ErrRange, "0 is out of range: mode %s needs memory", c.Mode))
		}
	case ModeStandaloneStore:
		l.fail(c.Origin("mode"), "mode", violate(ErrUnsupported, "%s is not supported by this version", c.Mode))
		if memory.Source != Default && c.Memory.Size != 0 && l.good("memory.size") {
			l.fail(memory, "memory.size", violate(ErrInvalid, "%v excludes mode %s, which contributes no memory: leave it out or set 0", c.Memory.Size, c.Mode))
		}
		if len(c.Disk.Dirs) > 0 && l.good("disk.dirs") {
			l.fail(c.Origin("disk.dirs"), "disk.dirs", violate(ErrInvalid, "a disk tier excludes mode %s", c.Mode))
		}
	}
}

// validateMemory checks the watermarks.
func (l *loader) validateMemory() {
	const low, high = "memory.low_watermark", "memory.high_watermark"
	m := l.cfg.Memory
	if m.LowWatermark < m.HighWatermark || !l.good(low, high) {
		return
	}
	l.failLatest(low, high, violate(ErrInvalid, "low_watermark %v (%v) must be below high_watermark %v (%v)",
		m.LowWatermark, l.cfg.Origin(low), m.HighWatermark, l.cfg.Origin(high)))
}

// failLatest records that two settings do not fit each other, at the one that
// comes from the later source; the first if they come from the same.
func (l *loader) failLatest(a, b string, err error) {
	if l.cfg.Origin(a).Source < l.cfg.Origin(b).Source {
		a = b
	}
	l.fail(l.cfg.Origin(a), a, err)
}

// validateDisk checks that no directory of the SSD tier holds another one, or the
// memory tier, or is held by it: each of them takes all files in it for its own.
// Names are compared, not what symbolic links make of them.
func (l *loader) validateDisk() {
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
			l.fail(l.cfg.Origin(at), at, violate(ErrInvalid, "%q %s %s, %q", d.Path, how, t.setting, t.path))
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
const minUsable = MiB

// validateStaging checks that what is usable of the staging memory suffices,
// where there is a tier that needs it. Source: the staging budget of vLLM's
// Mooncake store connector, which there is none of with offloading off.
func (l *loader) validateStaging() {
	const size, ratio = "staging.size", "staging.usable_ratio"
	st := l.cfg.Staging
	usable := float64(st.Size) * st.UsableRatio
	if len(l.cfg.Disk.Dirs) == 0 || !l.good(size, ratio) || usable >= float64(minUsable) {
		return
	}
	l.failLatest(size, ratio, violate(ErrInvalid, "size %v (%v) times usable_ratio %v (%v) is %v: want at least %v",
		st.Size, l.cfg.Origin(size), st.UsableRatio, l.cfg.Origin(ratio), Size(usable), minUsable))
}

// validateDirectIO checks that one operation fits into what may be in flight.
func (l *loader) validateDirectIO() {
	const chunk, inFlight = "directio.chunk", "directio.in_flight"
	d := l.cfg.DirectIO
	if d.Chunk <= d.InFlight || !l.good(chunk, inFlight) {
		return
	}
	l.failLatest(chunk, inFlight, violate(ErrInvalid, "chunk %v (%v) must not exceed in_flight %v (%v)",
		d.Chunk, l.cfg.Origin(chunk), d.InFlight, l.cfg.Origin(inFlight)))
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
