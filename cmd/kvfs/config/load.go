package config

import (
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/spf13/pflag"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 4 << 20

// Sources is where Load reads. The zero value means defaults only.
type Sources struct {
	File       string         // path, YAML or JSON. Empty means --config, else KVFS_CONFIG, else none
	InlineJSON string         // empty means --config-json, else KVFS_CONFIG_JSON, else none
	Environ    []string       // "NAME=value", as os.Environ; nil means no environment
	Flags      *pflag.FlagSet // parsed, defined by AddFlags; may be nil
	MemTotal   scalar.Size    // RAM of the machine, for defaults. Zero means to read /proc/meminfo and the limit of the control group
	Hostname   string         // of the machine, for defaults. Empty means to ask
	TierTypes  TierTypes      // what may be listed in tiers; nil means nothing
}

// Load reads all sources, checks them, and derives what was left open. On
// failure it returns nil and every violation at once: an errors.Join of *Error.
//
// It reads files and nothing else, and does not write to src.
func Load(src Sources) (*Config, error) {
	l := decode(src)
	l.validate()
	if len(l.errs) > 0 {
		return nil, errors.Join(l.errs...)
	}
	if err := rationalize(l.cfg, src); err != nil {
		return nil, err
	}
	l.cfg.Warnings = slices.Concat(l.warnings(), l.retiredWarnings(), l.small(), l.idle(), l.idleRDMA())
	return l.cfg, nil
}

// decode runs the first steps: defaults, file, inline JSON, environment, flags.
func decode(src Sources) *loader {
	l := &loader{cfg: &Config{origins: make(map[string]Origin)}, bad: make(map[string]bool), env: environment(src.Environ), types: src.TierTypes}
	setDefaults(reflect.ValueOf(l.cfg).Elem(), schema().settings)
	if file := FileOf(src); file != "" {
		l.decodeFile(file)
	}
	if inline := firstGiven(src.InlineJSON, flagString(src.Flags, flagInline), l.env[envInline]); inline != "" {
		document{loader: l, source: InlineJSON}.decode([]byte(inline))
	}
	l.overlayEnv()
	if src.Flags != nil {
		l.overlayFlags(src.Flags)
	}
	if texts := flagTexts(src.Flags, flagObject); len(texts) > 0 {
		l.overlayObjects(texts, Origin{Source: Flag, Name: flagObject})
	} else if text := l.env[envObject]; text != "" {
		l.overlayObjects([]string{text}, Origin{Source: Env, Name: envObject})
	}
	return l
}

// FileOf returns the file that Load reads, or "".
func FileOf(src Sources) string {
	return firstGiven(src.File, flagString(src.Flags, flagFile), environment(src.Environ)[envFile])
}

// firstGiven returns the first text that is not empty, trimmed.
func firstGiven(texts ...string) string {
	for _, text := range texts {
		if text, given := normalizeStringOverride(text); given {
			return text
		}
	}
	return ""
}

// decodeFile reads and decodes a file.
func (l *loader) decodeFile(name string) {
	d := document{loader: l, source: File, name: name}
	text, err := readFile(name)
	if err != nil {
		// The origin has the name already.
		if pathErr, ok := errors.AsType[*os.PathError](err); ok {
			err = pathErr.Err
		}
		l.fail(d.whole(), "", err)
		return
	}
	d.decode(text)
}

// readFile reads at most maxFile bytes.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = scalar.Violate(scalar.ErrRange, "the file has more than %v", scalar.Size(maxFile))
	}
	return text, err
}

// setDefaults sets the fields of a struct to the defaults in their tags.
func setDefaults(v reflect.Value, settings []*setting) {
	for _, s := range settings {
		field := v.Field(s.index)
		switch {
		case s.shape == section:
			setDefaults(field, s.settings)
		case s.shape != leaf || s.def == "":
		case s.repeated():
			field.Set(reflect.ValueOf(strings.Split(s.def, s.sep)))
		default:
			if err := s.setText(field, s.def); err != nil {
				panic("config: default of " + s.path + ": " + err.Error()) // a bug in the struct tags
			}
		}
	}
}
