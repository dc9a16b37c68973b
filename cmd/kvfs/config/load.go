// Package config is the configuration of the kvfs daemon: one struct, Config, and the strict loader that fills it.
//
// The struct is the only table. Names, flags, environment variables, defaults, ranges, the example file and the reference
// page (reference_test.go) all come from its field tags by reflection, so a new setting is one new field:
//
//	kvfs:"size"       the key in files; with the section's key it makes the path memory.size
//	help:"..."        what it means, in full sentences; the first one is the flag's help
//	default:"4GiB"    in the text form that a file would use; absent means the zero value
//	auto:"a quarter…" the default in words, where it is computed (see rationalize)
//	example:"64GiB"   a value for the documentation, in text form; of a table, a name; - in a list: none
//	enum:"a|b"        the values of a string, or of each element of a list
//	min, max          bounds in text form, inclusive
//	above, below      likewise, exclusive
//	multiple:"4KiB"   a size must be a multiple of this one
//	check:"hostport"  a named check of a string or of each element of a list (see checks)
//	name:"disk"       what the variable and the flag are called, if not as the path
//	empty:"contains…" what is wrong with a list of which an element is empty; else in general words
//	sep:";"           what separates the elements of a list in an environment variable; else ","
//	names:"group"     a named check of the names in a table (see tableNames)
//	short:"Peers"     the heading under which the short help shows its flag; absent means only --help-all does
//	case:"tests/x …"  why it is a setting and no constant, for the reference, where nobody has measured it
//	holds:"path"      the value is the path of a file or directory, or an endpoint that may be one (see Paths)
//	env:"weak"        the environment counts only where no file and no inline JSON says anything
//	files:"only"      neither a variable nor a flag
//	required:"true"   in a list of sections: the key must be given
//
// Field types are bool, string, int, *int (may be absent, which is not 0), float64, Size, Duration, []string, sections
// (structs), tables (map[string]struct, files only) and lists ([]struct). Tables may hold lists.
//
// # Sources
//
// From the lowest precedence to the highest: defaults, file (YAML or JSON), inline JSON, environment, flags. Names map
// mechanically: memory.size in files is KVFS_MEMORY_SIZE in the environment and --memory-size as a flag. Sections and tables
// merge key by key across sources; a list is replaced as a whole.
//
// Variables of Mooncake and of engines are aliases of ours, or say nothing to us; each
// one is a line in Config.Warnings, for the log. See aliases and unmatched.
//
// # Steps
//
// Load runs decode, overlay of the environment, overlay of the flags that were set, validate, rationalize, and says what
// became of aliases and what has no effect. Every violation of the first four is collected, and all are returned at once,
// each an *Error that knows its Origin.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 4 << 20

// Sources is where Load reads. The zero value means defaults only.
type Sources struct {
	File       string         // path, YAML or JSON. Empty means --config, else KVFS_CONFIG, else none
	InlineJSON string         // empty means --config-json, else KVFS_CONFIG_JSON, else none
	Environ    []string       // "NAME=value", as os.Environ; nil means no environment
	Flags      *pflag.FlagSet // parsed, defined by AddFlags; may be nil
	MemTotal   scalar.Size    // RAM of the machine, for defaults. Zero means to ask, and to read the limit of the control group
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
	l.cfg.Warnings = slices.Concat(l.warnings(), l.small(), l.idle(), l.idleRDMA())
	return l.cfg, nil
}

// decode runs the first steps: defaults, file, inline JSON, environment, flags.
func decode(src Sources) *loader {
	l := &loader{cfg: defaultConfig(), bad: make(map[string]bool), env: environment(src.Environ), types: src.TierTypes}
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

func defaultConfig() *Config {
	c := &Config{origins: make(map[string]Origin)}
	setDefaults(reflect.ValueOf(c).Elem(), schema().settings)
	return c
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

// flagHelpAll shows the help with all settings; --help shows those that people use.
const flagHelpAll = "help-all"

// FlagUsages returns the help of the flags of command, where AddFlags defined some of them: first flags that are no
// settings, then settings by their headings. Settings without a heading are left out, and the last line says so, unless
// --help-all was given. ok is false if AddFlags defined none.
func FlagUsages(flags *pflag.FlagSet, command string) (text string, ok bool) {
	all := flags.Lookup(flagHelpAll)
	if all == nil {
		return "", false
	}
	const first, last = "Flags", "Other settings"
	headings, under := []string{first}, map[string]*pflag.FlagSet{}
	add := func(heading string, f *pflag.Flag) {
		if under[heading] == nil {
			under[heading] = pflag.NewFlagSet("", pflag.ContinueOnError)
			under[heading].SortFlags = flags.SortFlags
		}
		under[heading].AddFlag(f)
	}
	settings := make(map[string]bool)
	for _, t := range textSettings() {
		settings[t.flag()] = true
		if t.short == "" {
			add(last, flags.Lookup(t.flag()))
			continue
		}
		if under[t.short] == nil {
			headings = append(headings, t.short)
		}
		add(t.short, flags.Lookup(t.flag()))
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if !settings[f.Name] {
			add(first, f)
		}
	})
	if all.Changed {
		headings = append(headings, last)
	}
	var b strings.Builder
	for _, heading := range headings {
		fmt.Fprintf(&b, "\n%s:\n%s", heading, under[heading].FlagUsages())
	}
	if !all.Changed {
		count := 0
		under[last].VisitAll(func(*pflag.Flag) { count++ })
		fmt.Fprintf(&b, "\nRun %s --%s for the other %d settings.\n", command, flagHelpAll, count)
	}
	return b.String(), true
}

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
