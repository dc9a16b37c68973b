package config

import (
	"reflect"
)

// unsupported lists the settings that are known but not part of this version,
// so that nobody believes they work. A setting that differs from its default is
// refused, with what it belongs to. Support for it deletes its row.
var unsupported = []struct{ path, what string }{
	{"disk", "the disk tier is"},
	{"join", "the cluster is"},
	{"bind", "the cluster is"},
	{"advertise", "the cluster is"},
	{"node_name", "the cluster is"},
	{"replicas", "the cluster is"},
	{"insecure", "the cluster is"},
}

// validate checks settings against each other; each alone was checked when it
// was decoded. A setting with a violation is not looked at again.
func (l *loader) validate() {
	l.validateMode()
	l.validateMemory()
	l.validateUnsupported()
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
		if len(c.Disk) > 0 && l.good("disk") {
			l.fail(c.Origin("disk"), "disk", violate(ErrInvalid, "a disk tier excludes mode %s", c.Mode))
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
	at, path := l.cfg.Origin(low), low
	if at.Source < l.cfg.Origin(high).Source {
		at, path = l.cfg.Origin(high), high
	}
	l.fail(at, path, violate(ErrInvalid, "low_watermark %v (%v) must be below high_watermark %v (%v)",
		m.LowWatermark, l.cfg.Origin(low), m.HighWatermark, l.cfg.Origin(high)))
}

// validateUnsupported refuses what this version lacks.
func (l *loader) validateUnsupported() {
	defaults := reflect.New(reflect.TypeFor[Config]()).Elem()
	setDefaults(defaults, schema().settings)
	for _, u := range unsupported {
		s := lookup(u.path)
		got := reflect.ValueOf(l.cfg).Elem().FieldByIndex(s.at)
		empty := s.repeated() && got.Len() == 0
		if !empty && !reflect.DeepEqual(got.Interface(), defaults.FieldByIndex(s.at).Interface()) {
			l.fail(l.cfg.Origin(u.path), u.path, violate(ErrUnsupported, "%s not part of this version", u.what))
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
