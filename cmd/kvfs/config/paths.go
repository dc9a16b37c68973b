package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Path is a file or directory that a configuration names.
type Path struct {
	Setting string  // "disk.dirs[0].path"
	Value   *string // in the configuration; that of an endpoint has its scheme
}

// File returns the path without a scheme.
func (p Path) File() string { return strings.TrimPrefix(*p.Value, ipcScheme) }

// Paths returns all paths that c names, in the order of the settings, also those of tiers of further types.
func (c *Config) Paths() []Path {
	all := pathsIn(reflect.ValueOf(c).Elem(), schema().settings, "")
	tiers := schema().find("tiers")
	for i := range c.Tiers {
		if t := &c.Tiers[i]; t.Options != nil {
			_, own := t.settings(tiers)
			all = append(all, pathsIn(reflect.ValueOf(t.Options).Elem(), own, fmt.Sprintf("tiers[%d]", i))...)
		}
	}
	return all
}

// pathsIn returns the paths that the settings of a struct hold; path leads to the struct. Tables have no paths.
func pathsIn(v reflect.Value, settings []*setting, path string) (all []Path) {
	for _, s := range settings {
		field, at := v.Field(s.index), join(path, s.key)
		switch {
		case s.shape == section:
			all = append(all, pathsIn(field, s.settings, at)...)
		case s.shape == list:
			for i := range field.Len() {
				all = append(all, pathsIn(field.Index(i), s.settings, fmt.Sprintf("%s[%d]", at, i))...)
			}
		case s.file && s.repeated():
			for i := range field.Len() {
				all = appendPath(all, fmt.Sprintf("%s[%d]", at, i), field.Index(i))
			}
		case s.file:
			all = appendPath(all, at, field)
		}
	}
	return all
}

// appendPath appends the setting v unless it names no path.
func appendPath(all []Path, at string, v reflect.Value) []Path {
	value := v.Addr().Interface().(*string)
	if *value == "" || strings.HasPrefix(*value, tcpScheme) {
		return all
	}
	return append(all, Path{at, value})
}
