package config

import (
	"reflect"
	"strings"
)

// heeded are the settings that a mount of mode standalone-store uses, beside those of which any
// value but the default is an error. All others are for the owner.
var heeded = map[string]bool{
	"mode": true, "store.socket": true, "store.owner_timeout": true, "node_name": true, "drain_timeout": true,
	"memory.passthrough": true, "mount.allow_other": true, "mount.entry_timeout": true, "mount.attr_timeout": true,
	"mount.max_write": true, "mount.fs_name": true, "log.level": true, "log.format": true,
}

// idle says, in one line, which settings were given and have no effect in the mode. What
// says the same as the default does is none of them: a file may spell out everything.
func (l *loader) idle() []string {
	if l.cfg.Mode != ModeStandaloneStore {
		return nil
	}
	defaults := &Config{}
	setDefaults(reflect.ValueOf(defaults).Elem(), schema().settings)
	paths := l.given(schema(), reflect.ValueOf(l.cfg).Elem(), reflect.ValueOf(defaults).Elem())
	if len(paths) == 0 {
		return nil
	}
	return []string{"mode " + l.cfg.Mode + " (" + l.cfg.Origin("mode").String() + "): only kvfs serve heeds " + strings.Join(paths, ", ")}
}

// given lists the settings below s that are not heeded, and of which the value is not the
// default.
func (l *loader) given(s *setting, value, def reflect.Value) []string {
	var paths []string
	for _, child := range s.settings {
		v, d := value.Field(child.index), def.Field(child.index)
		idle := false
		switch child.shape {
		case section:
			paths = append(paths, l.given(child, v, d)...)
		case table, list:
			idle = v.Len() > 0
		default: // what has no origin follows from other settings
			idle = !heeded[child.path] && l.cfg.Origin(child.path).Source != Default && format(v) != format(d)
		}
		if idle {
			paths = append(paths, child.path)
		}
	}
	return paths
}
