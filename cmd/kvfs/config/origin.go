package config

import (
	"fmt"
	"strings"
)

// Source is the kind of place that a value comes from, in order of precedence.
type Source uint8

const (
	Default Source = iota
	File
	InlineJSON
	Env
	Flag
)

// Origin is the place that a value, or a violation, comes from.
type Origin struct {
	Source Source
	Name   string // file, environment variable, or flag without dashes; else empty
	Line   int    // of a File or InlineJSON, from 1; 0 if not known
	Col    int    // in runes, from 1
}

// String returns "default", "<file>:<line>", "config-json <line>:<col>",
// "env <NAME>" or "flag --<name>".
func (o Origin) String() string {
	switch o.Source {
	case File:
		if o.Line == 0 {
			return o.Name
		}
		return fmt.Sprintf("%s:%d", o.Name, o.Line)
	case InlineJSON:
		if o.Line == 0 {
			return "config-json"
		}
		return fmt.Sprintf("config-json %d:%d", o.Line, o.Col)
	case Env:
		return "env " + o.Name
	case Flag:
		return "flag --" + o.Name
	}
	return "default"
}

// Error is one violation.
type Error struct {
	Origin Origin // where it stands
	Path   string // the setting that is meant; empty if there is none
	Err    error  // one of the kinds below, wrapped with what was found and what is allowed
}

// Error prints "<origin>: <path>: <what>".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Origin.String())
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	b.WriteString(": " + e.Err.Error())
	return b.String()
}

// Unwrap returns the kind, wrapped.
func (e *Error) Unwrap() error { return e.Err }
